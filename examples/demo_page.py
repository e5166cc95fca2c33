"""The page that examples/demo.py writes: one file, no network, light and dark, printable."""

from __future__ import annotations

from html import escape
from typing import Any

from demo_charts import STYLE, curves, scatter

Cells = tuple[list[str], list[list[str]]]


def size(count: int) -> str:
    """
    >>> size(1_500_000), size(2_930)
    ('1.50 MB', '2.9 kB')
    """
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def comparison(record: dict[str, Any]) -> Cells:
    """Both runs side by side: column titles and rows of text, for the page and the screen."""
    plain, attached = record["runs"]
    times = record["time"]
    ratio = plain["kept_bytes"] / attached["kept_bytes"]
    rows = [
        ["kept for backward", size(plain["kept_bytes"]), size(attached["kept_bytes"])],
        ["fewer bytes", "1.0×", f"{ratio:.1f}×"],
        ["peak of a step", size(plain["peak_bytes"]), size(attached["peak_bytes"])],
        ["step time, median", "1.00×", f"{times['median_ratio']:.2f}×"],
        ["time of all steps", "1.00×", f"{times['total_ratio']:.2f}×"],
        ["loss, last epoch", *(f"{run['train_loss']:.4f}" for run in record["runs"])],
        ["loss, test", *(f"{run['test_loss']:.4f}" for run in record["runs"])],
        ["accuracy, test", *(f"{100 * run['accuracy']:.1f} %" for run in record["runs"])],
    ]
    return ["", plain["name"], attached["name"]], rows


def kept_tensors(record: dict[str, Any]) -> Cells:
    """One row for every kept tensor. Small ones that stay as they are share one."""
    columns = ["layer", "kept as", "bound", "plain", "stored", "ratio", "why"]
    rows, small = [], []
    for tensor in record["kept"]["tensors"]:
        if tensor["how"] == "exact" and tensor["why"] == "small":
            small.append(tensor)
            continue
        rows.append(
            [
                tensor["site"]["module"] or "(top)",
                tensor["how"],
                f"{tensor['bound']:.2g}" if tensor["bound"] else "",
                size(tensor["plain"]),
                size(tensor["stored"]) if tensor["stored"] else "",
                f"{tensor['ratio']:.1f}×" if tensor["ratio"] else "",
                tensor["why"],
            ]
        )
    if small:
        plain, stored = (sum(t[key] for t in small) for key in ("plain", "stored"))
        sizes = [size(plain), size(stored), f"{plain / stored:.1f}×"]
        rows.append([f"({len(small)} more)", "exact", "", *sizes, "small"])
    return columns, rows


def gradient_errors(record: dict[str, Any]) -> Cells:
    """One row for every gradient that an error was compared in."""
    rows = []
    for use in record["gradients"]["uses"]:
        source = use["site"].partition("/")[0]
        layer = use["consumer"].partition("/")[0]
        through = source if source != layer else ""
        for gradient, suffix in ((use["parameter"], ""), ("flows on", "_stream")):
            predicted, measured = use[f"predicted{suffix}"], use[f"measured{suffix}"]
            if gradient and predicted is not None and measured is not None:
                numbers = [f"{predicted:.1e}", f"{measured:.1e}", _over(measured, predicted)]
                rows.append([layer, gradient, through, *numbers])
    return ["layer", "gradient", "error of", "predicted", "measured", "m/p"], rows


def _over(measured: float, predicted: float) -> str:
    return f"{measured / predicted:.2f}" if predicted > 0 else ""


def findings(record: dict[str, Any]) -> list[str]:
    """What the tables do not say, in sentences."""
    whole, training = record["gradients"]["parameters"], record["training"]
    full = [k for k in training["kept"] if k["images"] == record["settings"]["batch"]]
    ratios = sorted(k["plain"] / k["stored"] for k in full)
    lines = [
        f"All errors together change a gradient by {100 * whole['gradient']:.2g} % of its own "
        f"squared norm, and by {100 * whole['reference']:.2g} % of its momentum's, for which "
        f"the tolerance is {100 * record['settings']['tolerance']:g} % (measured against plain "
        f"autograd, mean over {whole['count']} parameters).",
        f"During the training, full batches were kept {ratios[len(ratios) // 2]:.1f}× smaller "
        f"in the median step, {ratios[0]:.1f}× in the worst and {ratios[-1]:.1f}× in the best.",
    ]
    checks = training["checks"]
    if checks:
        lines.append(
            "The controller compared with the true gradient by itself: "
            + "; ".join(
                f"step {c['step']}, {c['consumer'].partition('/')[0]} ({c['gradient']}), "
                f"predicted {c['predicted']:.1e}, measured {c['measured']:.1e}"
                for c in checks
            )
            + "."
        )
    lines += [f"It noted: {note}." for note in record["notes"]]
    return lines


def render(record: dict[str, Any]) -> str:
    """The whole page."""
    plain, attached = record["runs"]
    settings = record["settings"]
    kept = record["training"]["kept"]
    rows = dict((row[0], row[1:]) for row in comparison(record)[1])
    accuracy = rows["accuracy, test"]
    said = "".join(f"<li>{escape(line)}</li>" for line in findings(record))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Encke demo</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{escape(rows["fewer bytes"][1])} fewer bytes kept for backward, {escape(accuracy[1])}
accuracy against {escape(accuracy[0])}</h1>
<p>One small convolutional network on scikit-learn's digits, trained {settings["epochs"]}
epochs from seed {settings["seed"]}: once plainly, once after
<code>encke.attach(model, optimizer, tolerance={settings["tolerance"]:g})</code>.</p>
{_table(comparison(record), "comparison")}
<h2>Loss, step by step</h2>
{
        curves(
            [(run["name"], run["losses"]) for run in (plain, attached)],
            label="training loss of both runs",
            number=lambda loss: f"{loss:.2f}",
        )
    }
<h2>Bytes kept at the end of forward, step by step</h2>
{
        curves(
            [("plain", [k["plain"] for k in kept]), ("Encke", [k["stored"] for k in kept])],
            label="bytes kept at every step",
            number=lambda count: size(round(count)),
            logarithmic=True,
        )
    }
<p>Logarithmic. The last batch of an epoch is smaller. Where the controller compares with the
true gradient, one exact tensor is kept beside its packed form for that step.</p>
<ul>{said}</ul>
<h2>What is kept after the training, and how</h2>
{_table(kept_tensors(record), "kept", text=(0, 1, 6))}
<p>For a full batch. A tensor that is shared or derived takes no bytes of its own. Several
rows may be about one tensor (a ReLU's result is the next convolution's input), so the column
"plain" adds up to more than plain autograd keeps: {size(record["kept"]["plain"])} in unique
storages, against {size(record["kept"]["stored"])} stored. A bound is the largest error of a
value, in the tensor's own units.</p>
<h2>Error of the gradients, predicted and measured</h2>
{_scatter(record)}
{_table(gradient_errors(record), "gradients", text=(0, 1, 2))}
<p>Squared norm of the error over that of the gradient itself, mean over
{record["gradients"]["batches"]} batches after the training; each row is about the error of
one tensor alone, in one op. The prediction is what the controller works with: a closed form
for convolutions and linear layers, a probe with fresh noise for the rest. The measurement
repeats the op with the exact tensor. "Flows on" is the gradient that the op hands to the
layers before it; "error of" names the layer whose tensor an input was derived from.</p>
<h2>How to read this</h2>
<ul>
<li>"Kept for backward" is what is held at the end of a full batch's forward: for plain
autograd the unique storages without parameters and buffers, for Encke what the tape
holds.</li>
<li>"Peak of a step" is how far the resident set of a process rises over a forward and
backward, after the training: medians, the two networks in turn, with an allocator that gives
freed memory back at once. It also contains gradients, temporaries and the codec's own scratch
space, so it falls less.</li>
<li>Steps of the two runs took turns. "Step time" is the median of the {len(plain["losses"])}
quotients of neighbours; "time of all steps" includes those that the controller observes,
which are slower.</li>
<li>One seed, one small data set: differences of a point of accuracy are chance.</li>
<li>Backend {escape(settings["backend"])}, torch {escape(settings["torch"])} on
{settings["threads"]} threads ({escape(settings["machine"])}), {settings["train"]} digits to
train on and {settings["test"]} to test, batches of {settings["batch"]}.</li>
</ul>
</main>
</body>
</html>
"""


def _table(cells: Cells, name: str, *, text: tuple[int, ...] = (0,)) -> str:
    columns, rows = cells

    def line(row: list[str], tag: str) -> str:
        return "".join(
            f'<{tag} class="text">{escape(cell)}</{tag}>'
            if place in text
            else f"<{tag}>{escape(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return (
        f'<div class="wide"><table id="{name}"><thead><tr>{line(columns, "th")}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _scatter(record: dict[str, Any]) -> str:
    points: dict[str, list[tuple[float, float]]] = {
        "gradients of parameters": [],
        "gradients that flow on": [],
    }
    for use in record["gradients"]["uses"]:
        for name, suffix in zip(points, ("", "_stream"), strict=True):
            predicted, measured = use[f"predicted{suffix}"], use[f"measured{suffix}"]
            if predicted and measured:
                points[name].append((predicted, measured))
    return scatter(
        list(points.items()), across="predicted", up="measured", label="predicted and measured"
    )
