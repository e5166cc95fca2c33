"""A state goes to a file tensor by tensor, each by its rule."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from encke import atomic
from encke.bound import PointwiseRelative
from encke.errors import UnsupportedError
from encke.store import delta, logarithm, pruned, root
from encke.store.blobs import BlobWriter
from encke.store.container import PartWriter
from encke.store.delta import Base
from encke.store.rules import (
    Entry,
    Exact,
    Lattice,
    Logarithm,
    Pruned,
    RootRelative,
    Rule,
    Within,
    encode_exact,
    encode_lattice,
    encode_within,
)
from encke.store.tree import Flattened, dtype_name

_EXACT = Exact()


def write_state(
    path: Path,
    state: Any,
    rules: Mapping[str, Rule],
    *,
    report: Mapping[str, Any],
    base: Base | None = None,
) -> dict[str, Any]:
    """Write `state` to `path`, whole or not at all; the index that was written.

    rules   by the name of a tensor; the others are kept exactly
    report  for people: what was promised and measured
    base    what deltas are counted from
    """
    flat = Flattened(state)
    check_tensors(flat)
    with atomic.replacing(path) as file:
        parts = PartWriter(file)
        sink = BlobWriter(parts)
        entries = _entries(flat, rules, sink, base)
        index: dict[str, Any] = {
            "format": "encke state",
            "tree": flat.tree,
            "tensors": entries,
            "blobs": sink.finish(),
            "report": _finite(dict(report)),
        }
        if base is not None:
            index["base"] = base.reference(path)
        index["id"] = _identity(index)
        parts.finish(index)
    return index


def _finite(value: Any) -> Any:
    """A report without numbers that JSON has not."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _identity(index: Mapping[str, Any]) -> str:
    """Of the content: the index has a checksum of every part."""
    text = json.dumps({key: value for key, value in index.items() if key != "report"})
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def check_tensors(flat: Flattened) -> None:
    """Raise, before anything is written, for tensors that have no values of their own."""
    import torch

    for name, x in zip(flat.names, flat.tensors, strict=True):
        if x.is_meta:
            raise UnsupportedError(
                f"{name} is on the meta device and has no values; materialise the model first"
            )
        if x.layout is not torch.strided:
            raise UnsupportedError(f"{name} has layout {x.layout}; only strided ones are taken")
        if hasattr(x, "full_tensor"):
            raise UnsupportedError(
                f"{name} is a DTensor, of which this process has a part; use "
                "torch.distributed.checkpoint with encke.store.dcp.Writer"
            )


def _entries(
    flat: Flattened, rules: Mapping[str, Rule], sink: BlobWriter, base: Base | None
) -> list[Entry]:
    numbers = {name: number for number, name in enumerate(flat.names)}
    entries: list[Entry | None] = [None] * len(flat.tensors)
    seen: dict[tuple[Any, ...], int] = {}
    second: dict[str, Tensor] = {}  # decoded second moments that a first moment waits for
    wanted = {rule.of for rule in rules.values() if isinstance(rule, RootRelative)}
    for name in _order(flat.names, rules):
        number = numbers[name]
        x = flat.tensors[number]
        key = _memory(x)
        if key in seen:
            entry: Entry = {"how": "same", "as": seen[key]}
        else:
            entry = _entry(name, x, rules, sink, base, second, numbers)
            if key is not None:
                seen[key] = number
        if name not in wanted:  # a first moment has been written, or nobody waits
            second.pop(getattr(rules.get(name), "of", name), None)
        shape, dtype = list(x.shape), dtype_name(x.dtype)
        entries[number] = {"name": name, "shape": shape, "dtype": dtype, **entry}
    return [entry for entry in entries if entry is not None]


def _order(names: Iterable[str], rules: Mapping[str, Rule]) -> list[str]:
    """The names, each first moment right after its second one."""
    order: list[str] = []
    waiting: dict[str, list[str]] = {}
    for name in names:
        rule = rules.get(name)
        if isinstance(rule, RootRelative):
            waiting.setdefault(rule.of, []).append(name)
    held = {name for several in waiting.values() for name in several}
    for name in names:
        if name not in held:
            order += [name, *waiting.get(name, ())]
    return order


def _memory(x: Tensor) -> tuple[Any, ...] | None:
    """What two names of one tensor have in common; None where nothing can be shared."""
    if x.numel() == 0:
        return None
    return (str(x.device), x.data_ptr(), x.dtype, tuple(x.shape), x.stride())


def _entry(
    name: str,
    x: Tensor,
    rules: Mapping[str, Rule],
    sink: BlobWriter,
    base: Base | None,
    second: dict[str, Tensor],
    numbers: Mapping[str, int],
) -> Entry:
    rule = rules.get(name, _EXACT)
    if isinstance(rule, Lattice):
        return encode_lattice(rule, sink)
    if isinstance(rule, Pruned):
        entry: Entry = pruned.encode(x, rule.codes, rule.step, rule.error, sink)
        return entry
    if isinstance(rule, Within):
        found = delta.within(name, x, rule, sink, base)
        return encode_within(x, rule.bound, sink) if found is None else found
    if isinstance(rule, Logarithm):
        if not logarithm.takes(x, rule.factor):
            bound = PointwiseRelative(min(0.5, rule.factor - 1.0))
            return (
                encode_within(x, bound, sink)
                if x.is_floating_point()
                else encode_exact(x, sink)
            )
        origin = (
            None if base is None else base.second_moment(name, x, 2 * math.log2(rule.factor))
        )
        entry, decoded = logarithm.encode(
            x, rule.factor, sink, factored=rule.factored, base=origin
        )
        second[name] = decoded
        return entry if origin is None else {**entry, "on": "base"}
    if isinstance(rule, RootRelative):
        v = second.get(rule.of)
        kept = None if v is None else root.encode(x, v, rule.ratio, sink)
        return encode_exact(x, sink) if kept is None else {**kept, "of": numbers[rule.of]}
    unchanged = None if base is None else base.unchanged(name, x)
    return {"how": "base"} if unchanged else encode_exact(x, sink)
