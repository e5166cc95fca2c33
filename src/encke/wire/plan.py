"""Which way to exchange gradients is the fastest here, and why."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from encke.errors import UnsupportedError
from encke.wire.cost import Coding, Stages, Workload, coded_stages, plain_stages, step_seconds
from encke.wire.link import Line, Link
from encke.wire.reduce import in_one_round

PLAIN = "none"
#: A choice must be faster by this share to be preferred to a more exact one,
WORTHWHILE = 0.03
#: and compression by this one to be preferred to none: about what predictions are off by.
DECLINED = 0.06
_RECENT = 64  # observed steps of a choice that are remembered


@dataclass(frozen=True, order=True)
class Choice:
    """A codec and a tolerance; the codec "none" exchanges exactly.

    >>> str(Choice("entropy", 0.01)), str(Choice("none", 0.0))
    ('entropy, tolerance 0.01', 'none')
    """

    codec: str
    tolerance: float

    @property
    def pair(self) -> tuple[str, float]:
        return self.codec, self.tolerance

    def __str__(self) -> str:
        return PLAIN if self.codec == PLAIN else f"{self.codec}, tolerance {self.tolerance:.2g}"


EXACT = Choice(PLAIN, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A choice with what it is predicted to take: seconds of a step, bytes sent by a rank."""

    choice: Choice
    seconds: float
    sent: float
    memory: float


@dataclass(kw_only=True)
class Plan:
    """Predictions for every choice on one group of ranks, and the choice that was made.

    limit     bytes of memory that an exchange may take beside the gradients; None: any
    observed  seconds of steps that a training saw, by choice
    """

    link: Link
    workload: Workload
    codings: Mapping[Choice, Coding]
    limit: float | None = None
    observed: dict[Choice, list[float]] = field(default_factory=dict)
    chosen: Choice = EXACT

    def __post_init__(self) -> None:
        if not self.rows():
            raise UnsupportedError(
                f"memory limit is {self.limit!r} bytes, no way to exchange takes as little"
            )
        self.chosen = self.best()

    @property
    def compresses(self) -> bool:
        return self.chosen.codec != PLAIN

    def choices(self) -> list[Choice]:
        return [EXACT, *sorted(self.codings)]

    def rows(self) -> list[Row]:
        """What fits the memory limit, the fastest first."""
        rows = [self.row(choice) for choice in self.choices()]
        fitting = [row for row in rows if self.limit is None or row.memory <= self.limit]
        return sorted(fitting, key=lambda row: row.seconds)

    def row(self, choice: Choice) -> Row:
        stages = self.stages(choice)
        largest = max((b.nbytes for b in self.workload.buckets), default=0)
        coding = self.codings.get(choice)
        if coding is None:
            ring = 2 * (self.link.world - 1) / self.link.world
            sent, memory = ring * self.workload.nbytes, 0.0
        else:
            sent = sum(self._sent(b.values, b.nbytes, coding) for b in self.workload.buckets)
            # Decoded values of one rank beside the sum, and messages out and in.
            memory = (1 + 2 * self.link.world * coding.size) * largest
        seconds = step_seconds(self.workload, stages)
        return Row(choice=choice, seconds=seconds, sent=sent, memory=memory)

    def stages(self, choice: Choice) -> list[Stages]:
        """What each bucket takes."""
        coding = self.codings.get(choice)
        if coding is None:
            return [plain_stages(bucket, self.link) for bucket in self.workload.buckets]
        return [
            coded_stages(
                bucket,
                self.link,
                coding,
                one_round=in_one_round(bucket.values, self.link.world),
            )
            for bucket in self.workload.buckets
        ]

    def best(self) -> Choice:
        """The most exact of the choices that are not noticeably slower than the fastest."""
        rows = self.rows()
        fastest = rows[0].seconds
        if any(row.choice == EXACT and row.seconds <= fastest * (1 + DECLINED) for row in rows):
            return EXACT
        near = [row for row in rows if row.seconds <= fastest * (1 + WORTHWHILE)]
        return min(near, key=lambda row: (row.choice.tolerance, row.seconds)).choice

    # -- while training ------------------------------------------------------------------------

    def saw(self, choice: Choice, seconds: float) -> None:
        """A step with `choice` took so long."""
        kept = self.observed.setdefault(choice, [])
        kept.append(seconds)
        del kept[:-_RECENT]

    def corrected(self, *, link: float, coding: float) -> Plan:
        """The plan if exchanges take `link` and codecs `coding` times as long as predicted."""
        codings = {
            choice: replace(one, encode=coding * one.encode, decode=coding * one.decode)
            for choice, one in self.codings.items()
        }
        return Plan(
            link=replace(
                self.link,
                exchange=_slower(self.link.exchange, link),
                reduce=_slower(self.link.reduce, link),
            ),
            workload=self.workload,
            codings=codings,
            limit=self.limit,
            observed=self.observed,
        )

    # -- in words ------------------------------------------------------------------------------

    def explain(self) -> str:
        """The predictions, what was observed, and why the choice is what it is."""
        link, work = self.link, self.workload
        lines = [
            f"{link.world} ranks, {work.nbytes / 1e6:.1f} MB of gradients in "
            f"{len(work.buckets)} buckets, {1e3 * work.seconds:.0f} ms a step without exchange",
            f"link: {8e-6 * link.exchange.bandwidth:.0f} Mbit/s sent by each rank, latency "
            f"{1e6 * link.exchange.latency:.0f} µs; "
            f"all-reduce {link.reduce.bandwidth / 1e6:.0f} MB/s, "
            f"{1e6 * link.reduce.latency:.0f} µs",
            "",
            f"{'choice':<28}{'predicted ms':>13}{'observed ms':>13}"
            f"{'sent MB':>9}{'memory MB':>11}",
        ]
        for row in self.rows():
            seen = self.observed.get(row.choice)
            observed = f"{1e3 * statistics.median(seen):.1f}" if seen else "–"
            mark = "→ " if row.choice == self.chosen else "  "
            lines.append(
                f"{mark + str(row.choice):<28}{1e3 * row.seconds:>13.1f}{observed:>13}"
                f"{row.sent / 1e6:>9.2f}{row.memory / 1e6:>11.1f}"
            )
        return "\n".join([*lines, "", self._why()])

    def _why(self) -> str:
        rows = {row.choice: row.seconds for row in self.rows()}
        if self.chosen == EXACT:
            coded = [seconds for choice, seconds in rows.items() if choice != EXACT]
            if not coded:
                return "exact: nothing else was to choose from"
            change = min(coded) / rows[EXACT] - 1
            return (
                f"exact: compression would make a step {abs(change):.1%} "
                f"{'longer' if change > 0 else 'shorter'}, worth it from {DECLINED:.0%} on"
            )
        return (
            f"{self.chosen}: {rows.get(EXACT, 0.0) / rows[self.chosen]:.2f}× as fast as exact"
        )

    def _sent(self, values: int, nbytes: int, coding: Coding) -> float:
        world = self.link.world
        if in_one_round(values, world):
            return (world - 1) * coding.size * nbytes
        return (world - 1) / world * (coding.size + coding.again) * nbytes


def _slower(line: Line, times: float) -> Line:
    return replace(line, latency=line.latency * times, bandwidth=line.bandwidth / times)
