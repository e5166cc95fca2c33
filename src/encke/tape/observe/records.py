"""What was kept in the last step, place by place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from torch import Tensor

from encke.tape.policy import Site


@dataclass(kw_only=True, slots=True)
class Record:
    """One saved tensor of one step.

    how     exact, lossy, mask, index, shape, shared, or what it is derived by
    plain   bytes of the tensor as it is; those of a shared tensor count where it is stored
    stored  bytes kept for it
    of      the place whose values it is computed from or shares
    error   the bound
    """

    site: Site
    shape: tuple[int, ...]
    plain: int
    stored: int
    how: str
    codec: str
    error: float = 0.0
    why: str = ""
    of: Site | None = None
    predicted: float | None = None
    measured: float | None = None


@lru_cache(maxsize=4096)
def _why(how: str, of: Site) -> str:
    return f"{how} of {of}" if how != "shared" else f"the same as {of}"


class Records:
    """The records of the step that runs, or ran last."""

    def __init__(self) -> None:
        self.step = 0
        self._by_site: dict[Site, Record] = {}

    def begin(self, step: int) -> None:
        self.step = step
        self._by_site.clear()

    def keep(self, record: Record) -> None:
        self._by_site[record.site] = record

    def share(self, site: Site, of: Site, t: Tensor, how: str) -> None:
        """`site` needs nothing of its own: it has what `of` keeps."""
        count = t.numel() * t.element_size()
        self.keep(
            Record(
                site=site,
                shape=tuple(t.shape),
                plain=count,
                stored=0,
                how="shared" if how == "shared" else "derived",
                codec="",
                why=_why(how, of),
                of=of,
            )
        )

    def follow(self, mask: Site, values: Site) -> None:
        """The mask of `mask` is read off the zeros of `values`."""
        found = self._by_site.get(mask)
        if found is not None:
            self.keep(replace(found, stored=0, why=f"the zeros of {values}", of=values))

    def saved_by(self, site: Site) -> tuple[Site, int]:
        """The place that has the values of a site, and the bytes that keeping `site` saved.

        A tensor that another place keeps saves nothing of its own; left to autograd, it would
        keep alive what that place has packed.
        """
        record = self._by_site.get(site)
        if record is None:
            return site, 0
        if record.how == "shared" and record.of is not None:
            return record.of, 0
        return site, record.plain - record.stored

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._by_site.values()))

    def __len__(self) -> int:
        return len(self._by_site)

    def get(self, site: Site) -> Record | None:
        return self._by_site.get(site)
