#include "memory/extents.hpp"

#include <iterator>

namespace encke::memory {

// Nodes of the trees are used again wherever one extent replaces another: most calls of `add`
// and `take` allocate nothing.

void FreeExtents::add(Extent extent) {
    auto next = by_address_.lower_bound(extent.first);
    const bool joins_next =
        next != by_address_.end() && next->first == extent.first + extent.pages;
    if (next != by_address_.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second.count == extent.first) {
            size_t pages = previous->second.count + extent.pages;
            previous->second.resident += extent.resident;
            if (joins_next) {
                pages += next->second.count;
                previous->second.resident += next->second.resident;
                by_size_.erase({next->second.count, next->first});
                by_address_.erase(next);
            }
            auto node = by_size_.extract({previous->second.count, previous->first});
            node.value().first = pages;
            by_size_.insert(std::move(node));
            previous->second.count = pages;
            return;
        }
    }
    if (joins_next) {
        auto sized = by_size_.extract({next->second.count, next->first});
        sized.value() = {next->second.count + extent.pages, extent.first};
        by_size_.insert(std::move(sized));
        const auto hint = std::next(next);
        auto placed = by_address_.extract(next);
        placed.key() = extent.first;
        placed.mapped().count += extent.pages;
        placed.mapped().resident += extent.resident;
        by_address_.insert(hint, std::move(placed));
        return;
    }
    const auto placed =
        by_address_.insert(next, {extent.first, {extent.pages, extent.resident}});
    try {
        by_size_.insert({extent.pages, extent.first});
    } catch (...) {
        by_address_.erase(placed);
        throw;
    }
}

void FreeExtents::take(size_t first, size_t pages, size_t resident) {
    const auto found = by_address_.find(first);
    const auto [count, had] = found->second;
    if (count == pages) {
        by_size_.erase({count, first});
        by_address_.erase(found);
        return;
    }
    auto sized = by_size_.extract({count, first});
    sized.value() = {count - pages, first + pages};
    by_size_.insert(std::move(sized));
    const auto hint = std::next(found);
    auto placed = by_address_.extract(found);
    placed.key() = first + pages;
    placed.mapped() = {count - pages, had - resident};
    by_address_.insert(hint, std::move(placed));
}

void FreeExtents::split(size_t first, size_t at, size_t resident) {
    const auto found = by_address_.find(first);
    const size_t rest = first + found->second.count - at;
    const auto placed = by_address_.insert(std::next(found), {at, {rest, resident}});
    try {
        by_size_.insert({rest, at});
    } catch (...) {
        by_address_.erase(placed);
        throw;
    }
    auto sized = by_size_.extract({found->second.count, first});
    sized.value().first = at - first;
    by_size_.insert(std::move(sized));
    found->second.count = at - first;
    found->second.resident -= resident;
}

}  // namespace encke::memory
