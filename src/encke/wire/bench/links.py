"""Links of a known speed between ranks on one machine.

Every rank has a network namespace of its own with one interface, `wire0`, which ends at a
bridge in a further namespace. Both ends of that wire pass through a token bucket (`tc tbf`),
so each rank sends and receives at the rate at most. Nothing of the machine's own network is
touched; deleting the namespaces deletes everything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from encke.errors import EnckeError, UnsupportedError

INTERFACE = "wire0"
_PREFIX = "encke-wire"
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_BURST_SECONDS = 0.004
_SMALLEST_BURST = 128 * 1024  # two segments as the kernel hands them over


class LinkError(EnckeError, RuntimeError):
    """Shaped links cannot be had here."""


@dataclass(frozen=True)
class Rate:
    """Bits a second of a link; `None` for one that is not shaped.

    >>> Rate.parse("200mbit"), str(Rate.parse("1gbit")), str(Rate.parse("unshaped"))
    (Rate(bits=200000000.0), '1gbit', 'unshaped')
    """

    bits: float | None

    @classmethod
    def parse(cls, text: str) -> Rate:
        if text == "unshaped":
            return cls(None)
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(kbit|mbit|gbit)", text.strip().lower())
        if found is None or float(found[1]) == 0:
            raise UnsupportedError(
                f"rate is {text!r}, allowed are numbers with kbit, mbit or gbit, as in "
                "200mbit, and 'unshaped'"
            )
        return cls(float(found[1]) * _UNITS[found[2]])

    def __str__(self) -> str:
        if self.bits is None:
            return "unshaped"
        unit = next(
            u for u in ("gbit", "mbit", "kbit") if self.bits >= _UNITS[u] or u == "kbit"
        )
        return f"{self.bits / _UNITS[unit]:g}{unit}"


class ShapedLinks:
    """Namespaces for `ranks` ranks, each linked to all others at `rate`.

    A context manager; leaving it removes everything, whatever went wrong. What an earlier
    process left behind (one that was killed) is removed first.
    """

    def __init__(self, ranks: int, rate: Rate) -> None:
        self.ranks = ranks
        self.rate = rate
        self._name = f"{_PREFIX}-{os.getpid()}"

    def address(self, rank: int) -> str:
        return f"10.111.0.{rank + 1}"

    def command(self, rank: int) -> list[str]:
        """What to put before a command for it to run as `rank`."""
        return ["ip", "netns", "exec", self._namespace(rank)]

    def __enter__(self) -> ShapedLinks:
        refusal = why_not()
        if refusal is not None:
            raise LinkError(refusal)
        _remove_left_behind()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _build(self) -> None:
        hub = f"{self._name}-hub"
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", hub, "link", "set", "bridge", "up")
        for rank in range(self.ranks):
            own, port = self._namespace(rank), f"port{rank}"
            _ip("netns", "add", own)
            _ip("-n", own, "link", "add", INTERFACE, "type", "veth", "peer", "name", port)
            _ip("-n", own, "link", "set", port, "netns", hub)
            _ip("-n", own, "addr", "add", f"{self.address(rank)}/24", "dev", INTERFACE)
            for space, interface in ((own, "lo"), (own, INTERFACE), (hub, port)):
                _ip("-n", space, "link", "set", interface, "up")
            _ip("-n", hub, "link", "set", port, "master", "bridge")
            self._shape(own, INTERFACE)
            self._shape(hub, port)

    def _shape(self, namespace: str, interface: str) -> None:
        if self.rate.bits is None:
            return
        burst = max(_SMALLEST_BURST, int(self.rate.bits / 8 * _BURST_SECONDS))
        _run(_token_bucket(namespace, interface, f"{self.rate.bits:.0f}bit", burst))

    def _namespace(self, rank: int) -> str:
        return f"{self._name}-{rank}"

    def _remove(self) -> None:
        for name in _namespaces():
            if name.startswith(f"{self._name}-"):
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def why_not() -> str | None:
    """Why links cannot be shaped on this machine, or None if they can."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"shaping links needs the command `{tool}`; install iproute2"
    probe = f"{_PREFIX}-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode != 0:
        why = made.stderr.strip().splitlines()[-1:] or ["no reason given"]
        return (
            "shaping links needs the right to make network namespaces (root, or CAP_SYS_ADMIN "
            f"and CAP_NET_ADMIN): {why[0]}"
        )
    try:
        for command in (
            ["ip", "-n", probe, "link", "add", "one", "type", "veth", "peer", "name", "two"],
            _token_bucket(probe, "one", "1mbit", _SMALLEST_BURST),
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                return f"`{' '.join(command)}` is refused: {done.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return None


def _token_bucket(namespace: str, interface: str, rate: str, burst: int) -> list[str]:
    bucket = f"qdisc add dev {interface} root tbf rate {rate} burst {burst} latency 200ms"
    return ["tc", "-n", namespace, *bucket.split()]


def _remove_left_behind() -> None:
    for name in _namespaces():
        found = re.fullmatch(rf"{_PREFIX}-(?:probe-)?([0-9]+)(?:-.*)?", name)
        if found and not Path(f"/proc/{found[1]}").exists():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise LinkError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
