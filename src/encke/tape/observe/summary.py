"""A table of what the tape keeps, for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from encke.tape.observe.records import Record

if TYPE_CHECKING:
    from encke.tape.tape import Tape

_TIGHTER = 1.1  # times that bounds are tighter than without measurements: worth telling
_HEAD = ("layer", "op", "kept as", "codec", "bound", "plain", "stored", "ratio", "error", "why")


def table(tape: Tape) -> str:
    """The last step's tensors, one a line, and their sum."""
    if not len(tape.records):
        return (
            "nothing was kept: no forward pass with gradients ran through the tape "
            "(a model that was compiled since runs without it)"
        )
    stored, plain = tape.last_forward
    return render(
        tape.records,
        plain=plain,
        stored=stored,
        footer=errors(getattr(tape.policy, "told", dict)()),
        measured=getattr(tape.policy, "measured_errors", dict)(),
    )


def errors(told: Mapping[str, Any]) -> str:
    """A line on the error of all gradients; empty where the policy knows nothing of it.

    >>> errors({"asked": 0.01, "predicted": 0.01, "measured": 0.012, "worst": 0.03,
    ...         "parameter": "0.weight", "price": 1.4, "why_not": ""})
    'error of the gradients, of their scale: asked 0.01, predicted 0.01, measured 0.012, worst \
0.03 (0.weight); bounds are 1.4 times tighter than predicted'
    """
    if not told:
        return ""
    line = f"error of the gradients, of their scale: asked {told['asked']:.2g}"
    line += f", predicted {told['predicted']:.2g}"
    if told["why_not"]:
        return f"{line}; not measured: {told['why_not']}"
    if told["measured"] is None:
        return f"{line}, not measured yet"
    line += (
        f", measured {told['measured']:.2g}, worst {told['worst']:.2g} ({told['parameter']})"
    )
    if told["price"] > _TIGHTER:
        line += f"; bounds are {told['price']:.2g} times tighter than predicted"
    return line


def render(
    records: Iterable[Record],
    *,
    plain: int,
    stored: int,
    footer: str = "",
    measured: dict[str, tuple[float, float]] | None = None,
) -> str:
    """Lines of aligned columns. Tensors that are small and exact are summed up in one."""
    rows: list[tuple[str, ...]] = []
    small = 0
    for r in records:
        if r.how == "exact" and r.why == "small":
            small += r.stored
            continue
        found = (measured or {}).get(str(r.site))
        rows.append(
            (
                r.site.module or "(top)",
                f"{r.site.op}.{r.site.role}" + (f"#{r.site.index}" if r.site.index else ""),
                r.how,
                r.codec,
                f"{r.error:.2g}" if r.error else "",
                _size(r.plain),
                _size(r.stored) if r.stored else "",
                f"{r.plain / r.stored:.1f}×" if r.stored else "",
                f"{found[0]:.1e}/{found[1]:.1e}" if found else "",
                r.why,
            )
        )
    if small:
        rows.append(("(small tensors)", "", "exact", "", "", "", _size(small), "", "", ""))
    widths = [max(len(row[i]) for row in (_HEAD, *rows)) for i in range(len(_HEAD))]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in (_HEAD, *rows)
    ]
    lines.insert(1, "─" * max(len(line) for line in lines))
    ratio = f", {plain / stored:.1f}× smaller" if stored else ""
    lines.append(f"held after forward: {_size(stored)} in place of {_size(plain)}{ratio}")
    if measured:
        lines.append("error: variance of the gradient, predicted / measured in the last check")
    if footer:
        lines.append(footer)
    return "\n".join(lines)


def _size(count: int) -> str:
    """
    >>> _size(3 << 20)
    '3.0 MiB'
    """
    if count >= 1 << 20:
        return f"{count / 2**20:.1f} MiB"
    return f"{count / 2**10:.1f} KiB"
