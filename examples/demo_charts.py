"""Charts as SVG text for examples/demo_page.py, and the style of the page."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 640, 240, 70, 12, 34, 12


def curves(
    named: list[tuple[str, list[float]]],
    *,
    label: str,
    number: Callable[[float], str],
    logarithmic: bool = False,
) -> str:
    """Values by step, from 1 on; the vertical axis from zero, or logarithmic."""
    values = [v for _, line in named for v in line if v > 0 or not logarithmic]
    top = max(values, default=1.0) or 1.0
    low = min(values, default=top / 10) if logarithmic else 0.0
    if logarithmic and low == top:
        low = top / 10
    longest = max(len(line) for _, line in named)
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP

    def share(value: float) -> float:
        if logarithmic:
            return math.log(max(value, low) / low) / math.log(top / low)
        return value / top

    parts = []
    for mark in (0.0, 0.5, 1.0):
        y = TOP + height * (1 - mark)
        value = low * (top / low) ** mark if logarithmic else top * mark
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4}" class="end">{escape(number(value))}</text>'
        )
    for place, (name, line) in enumerate(named):
        points = " ".join(
            f"{LEFT + width * i / max(1, longest - 1):.1f},{TOP + height * (1 - share(v)):.1f}"
            for i, v in enumerate(line)
        )
        y = TOP + height / 2 - 20 + 18 * place if logarithmic else TOP + 14 + 18 * place
        parts.append(
            f'<polyline class="line run{place}" points="{points}"/>'
            f'<line class="line run{place}" x1="{WIDTH - 130}" x2="{WIDTH - 106}" '
            f'y1="{y - 4}" y2="{y - 4}"/><text x="{WIDTH - 98}" y="{y}">{escape(name)}</text>'
        )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 12}">step 1</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 12}" class="end">{longest}</text>')
    return _svg("".join(parts), label=label)


def scatter(
    named: list[tuple[str, list[tuple[float, float]]]], *, across: str, up: str, label: str
) -> str:
    """Points on two logarithmic axes of the same range, with the line where both are equal."""
    everything = [math.log10(v) for _, points in named for point in points for v in point]
    low = math.floor(min(everything, default=-1.0))
    high = max(math.ceil(max(everything, default=0.0)), low + 1)
    height = 340
    tall, wide = height - BOTTOM - 12 - TOP, WIDTH - LEFT - RIGHT

    def place_of(point: tuple[float, float]) -> tuple[float, float]:
        x, y = ((math.log10(v) - low) / (high - low) for v in point)
        return LEFT + wide * x, TOP + tall * (1 - y)

    parts = []
    for power in range(low, high + 1):
        x, y = place_of((10.0**power, 10.0**power))
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" class="end">1e{power}</text>'
            f'<text x="{x:.1f}" y="{TOP + tall + 18}" class="middle">1e{power}</text>'
        )
    (x1, y1), (x2, y2) = place_of((10.0**low,) * 2), place_of((10.0**high,) * 2)
    parts.append(
        f'<line class="edge" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        f'<text x="{WIDTH - RIGHT}" y="{height - 6}" class="end">{escape(across)}</text>'
        f'<text x="{LEFT + 6}" y="{TOP + 12}">{escape(up)}</text>'
    )
    for index, (name, points) in enumerate(named):
        shade = 1 - index
        for point in points:
            x, y = place_of(point)
            parts.append(f'<circle class="fill{shade}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>')
        y = TOP + tall - 28 + 18 * index
        parts.append(
            f'<circle class="fill{shade}" cx="{WIDTH - 190}" cy="{y - 4}" r="5"/>'
            f'<text x="{WIDTH - 178}" y="{y}">{escape(name)}</text>'
        )
    return _svg("".join(parts), height=height, label=label)


def _svg(content: str, *, height: int = HEIGHT, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{content}</svg>"
    )


STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fff; --soft: #d5dae0;
  --first: #8a939c; --second: #0072b2; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --paper: #14181c;
  --soft: #3a424a; --first: #98a2ac; --second: #56b4e9; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--soft); text-align: right;
  vertical-align: top; }
.text { text-align: left; } th { font-size: .85rem; }
#kept, #gradients { font-size: .88rem; } #comparison { max-width: 32rem; }
#kept td:not(:last-child), #gradients td { white-space: nowrap; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--soft); } .edge { stroke: var(--ink); stroke-dasharray: 3 3; }
.line { fill: none; stroke-width: 2; } .run0 { stroke: var(--first); }
.run1 { stroke: var(--second); } .fill0 { fill: var(--first); } .fill1 { fill: var(--second); }
@media print { :root { color-scheme: light; } body { font-size: 11px; }
  main { max-width: none; margin: 0; } h2 { break-after: avoid; }
  svg, tr { break-inside: avoid; } thead { display: table-header-group; }
  .wide { overflow: visible; } svg, .fill0, .fill1 { print-color-adjust: exact; } }
"""
