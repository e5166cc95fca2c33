"""The page that examples/demo.py writes: one file, no network, light and dark."""

from __future__ import annotations

from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 240, 58, 34, 12


def megabytes(count: int) -> str:
    """
    >>> megabytes(1_500_000)
    '1.50 MB'
    """
    return f"{count / 1e6:.2f} MB"


def table(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Column titles and one row a run, as text: what is printed and what the page shows."""
    columns = [
        "run",
        "kept for backward",
        "ratio",
        "peak of a step",
        "step time",
        "test accuracy",
    ]
    first = record["runs"][0]
    rows = [
        [
            run["name"],
            megabytes(run["held_bytes"]),
            f"{run['uncompressed_bytes'] / run['held_bytes']:.1f}×",
            megabytes(run["peak_bytes"]),
            f"{run['step_seconds'] / first['step_seconds']:.2f}×",
            f"{100 * run['accuracy']:.1f} %",
        ]
        for run in record["runs"]
    ]
    return columns, rows


def render(record: dict[str, Any]) -> str:
    """The whole page."""
    plain, encke = record["runs"]
    settings = record["settings"]
    columns, rows = table(record)
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Encke demo</title>
<style>{STYLE}</style>
<main>
<h1>{escape(rows[1][2])} fewer bytes kept for backward, {escape(rows[1][5])} accuracy
against {escape(rows[0][5])}</h1>
<p>One small convolutional network on scikit-learn's digits, trained {settings["epochs"]}
epochs from seed {settings["seed"]}: once plainly, once with every activation that autograd
keeps compressed so that no value comes back further off than
{100 * settings["bound"]:g} % of its tensor's range.</p>
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>
<h2>Loss, step by step</h2>
{_losses([(run["name"], run["losses"]) for run in (plain, encke)])}
<h2>Bytes kept, by the layer that kept them first</h2>
{_layers(encke["layers"])}
<h2>Error of what came back, over the bound</h2>
{_histogram(encke["error_histogram"])}
<p>Largest error: {encke["largest_error_over_bound"]:.4f} of the bound. Subtractive dither
makes the error uniform and independent of the value. Values that are exactly zero come back
as zero and are not counted here.</p>
<h2>What this is, and what it is not</h2>
<ul>
<li>The bound is one fixed number for all layers. Nothing chooses it and nothing watches the
gradients.</li>
<li>The hooks are a page of code, <code>examples/demo_hooks.py</code>. Each distinct tensor is
kept once; parameters and tensors of fewer than 4,096 values stay as they are.</li>
<li>"Kept for backward" counts storages that hold activations at the end of a forward pass.
"Peak of a step" is the most that one step had allocated at one time, by torch's profiler;
it also contains gradients and the results of single operations, so it falls less. The
codec's own scratch space is outside of what the profiler sees.</li>
<li>"Step time" is the median over the training, relative to the plain run. One seed, one
small data set: differences of a point of accuracy are chance.</li>
<li>Codec {escape(settings["codec"])} with dither, backend {escape(settings["backend"])},
torch {escape(settings["torch"])} on {settings["threads"]} threads
({escape(settings["machine"])}), {settings["train"]} digits to train on and
{settings["test"]} to test.</li>
</ul>
</main>
</html>
"""


def _svg(content: str, *, height: int = HEIGHT, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
        f"{content}</svg>"
    )


def _losses(curves: list[tuple[str, list[float]]]) -> str:
    top = max(max(losses) for _, losses in curves) or 1.0
    longest = max(len(losses) for _, losses in curves)
    width, height = WIDTH - LEFT - 12, HEIGHT - BOTTOM - TOP
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = TOP + height * (1 - share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 12}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" class="end">{top * share:.2f}</text>')
    for place, (name, losses) in enumerate(curves):
        points = " ".join(
            f"{LEFT + width * i / max(1, longest - 1):.1f},{TOP + height * (1 - v / top):.1f}"
            for i, v in enumerate(losses)
        )
        parts.append(f'<polyline class="line run{place}" points="{points}"/>')
        y = TOP + 14 + 18 * place
        parts.append(
            f'<line class="line run{place}" x1="{WIDTH - 130}" x2="{WIDTH - 106}" '
            f'y1="{y - 4}" y2="{y - 4}"/><text x="{WIDTH - 98}" y="{y}">{escape(name)}</text>'
        )
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 12}">step 1</text>')
    parts.append(f'<text x="{WIDTH - 12}" y="{HEIGHT - 12}" class="end">{longest}</text>')
    return _svg("".join(parts), label="training loss of both runs")


def _layers(layers: list[dict[str, Any]]) -> str:
    largest = max(layer["plain"] for layer in layers) or 1
    row, left = 24, 78
    width = WIDTH - left - 190
    parts = []
    for place, layer in enumerate(layers):
        y = row * place
        text = f"{layer['plain'] / 1e3:,.0f} → {layer['stored'] / 1e3:,.0f} kB"
        plain, stored = (width * layer[key] / largest for key in ("plain", "stored"))
        parts.append(
            f'<text x="{left - 6}" y="{y + 15}" class="end">{escape(layer["name"])}</text>'
            f'<rect class="fill0" x="{left}" y="{y + 3}" width="{plain:.1f}" height="8"/>'
            f'<rect class="fill1" x="{left}" y="{y + 12}" width="{stored:.1f}" height="8"/>'
            f'<text x="{left + max(plain, stored) + 8:.1f}" y="{y + 15}">{text}</text>'
        )
    return _svg("".join(parts), height=row * len(layers) + 6, label="bytes kept by layer")


def _histogram(counts: list[int]) -> str:
    largest = max(counts) or 1
    width, height = WIDTH - LEFT - 12, HEIGHT - BOTTOM - TOP
    step = width / len(counts)
    parts = [
        f'<rect class="fill1" x="{LEFT + step * i + 0.5:.1f}" '
        f'y="{TOP + height * (1 - count / largest):.1f}" width="{step - 1:.1f}" '
        f'height="{height * count / largest:.1f}"/>'
        for i, count in enumerate(counts)
    ]
    base = TOP + height
    parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 12}" y1="{base}" y2="{base}"/>')
    for share, text in ((0.0, "−bound"), (0.5, "0"), (1.0, "+bound")):
        x = LEFT + width * share
        anchor = ("", "middle", "end")[int(2 * share)]
        parts.append(f'<line class="edge" x1="{x}" x2="{x}" y1="{TOP}" y2="{base + 4}"/>')
        parts.append(f'<text x="{x}" y="{base + 20}" class="{anchor}">{text}</text>')
    return _svg("".join(parts), label="histogram of errors over the bound")


STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --paper: #fff; --soft: #d5dae0;
  --first: #8a939c; --second: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --paper: #14181c;
  --soft: #3a424a; --first: #98a2ac; --second: #56b4e9; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .5rem; border-bottom: 1px solid var(--soft); text-align: right; }
th:first-child, td:first-child { text-align: left; } th { font-size: .85rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--soft); } .edge { stroke: var(--ink); stroke-dasharray: 3 3; }
.line { fill: none; stroke-width: 2; } .run0 { stroke: var(--first); }
.run1 { stroke: var(--second); } .fill0 { fill: var(--first); } .fill1 { fill: var(--second); }
"""
