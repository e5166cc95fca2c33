"""What a network keeps for backward, tensor by tensor, with and without a tape."""

from __future__ import annotations

import picture
from matplotlib.figure import Figure
from network import Trained

from encke.tape.observe.records import Record

COLOURS = {
    "lossy": picture.BLUE,
    "mask": picture.ORANGE,
    "exact": picture.GREY,
    "derived": picture.GREEN,
    "shared": picture.SKY,
}


def records(trained: Trained, *, count: int = 11) -> list[Record]:
    """The first tensors of a forward pass that are not small."""
    trained.network(trained.images)
    return [record for record in trained.tape.records if record.why != "small"][:count]


def draw(trained: Trained) -> Figure:
    found = records(trained)
    drawn = picture.figure(height=0.33 * len(found) + 1)
    axes = drawn.subplots()
    for place, record in enumerate(found):
        axes.barh(place, record.plain / 1e6, color="#dddddd", height=0.72)
        colour = COLOURS.get(record.how, picture.RED)
        axes.barh(place, record.stored / 1e6, color=colour, height=0.72)
        kept = f"{record.stored / 1e3:.0f} kB" if record.stored else "nothing kept"
        axes.text(
            record.plain / 1e6 * 1.01,
            place,
            f"{record.how}: {kept}",
            va="center",
            fontsize=8,
            color="#111111",
        )
    labels = [f"{r.site.module}  {r.site.op}.{r.site.role}" for r in found]
    axes.set_yticks(range(len(found)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, max(r.plain for r in found) / 1e6 * 1.3)
    picture.label(
        axes,
        title="saved tensors of the first blocks, in the order of the forward pass",
        across="MB; grey: the tensor as it is",
    )
    axes.grid(axis="y", visible=False)
    return drawn
