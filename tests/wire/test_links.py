"""Shaped links: made and removed whatever happens, or refused with a reason."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from encke.cli import main
from encke.errors import UnsupportedError
from encke.wire.bench import links
from encke.wire.bench.links import Rate, ShapedLinks, why_not

REFUSAL = why_not()
shaped = pytest.mark.skipif(REFUSAL is not None, reason=str(REFUSAL))


def namespaces_of(process: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"encke-wire-{process}-")]


@pytest.mark.parametrize("text", ["", "200", "0mbit", "-1gbit", "fast", "1e3mbit"])
def test_a_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="allowed are numbers with kbit"):
        Rate.parse(text)


def test_without_the_tools_the_command_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(links.shutil, "which", lambda name: None)
    assert main(["wire", "bench", "--ranks", "2"]) == 2
    assert "install iproute2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--ranks", "1"], "--ranks has '1'"),
        (["--rate", "quick"], "rate is 'quick'"),
        (["--contestants", "magic"], "--contestants has magic"),
        (["--steps", "0"], "--steps is 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wire", "bench", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@shaped
def test_namespaces_are_gone_after_an_error() -> None:

    def fails_inside() -> None:
        with ShapedLinks(2, Rate.parse("50mbit")) as made:
            assert len(namespaces_of(os.getpid())) == 3
            show = [*made.command(0), "ip", "-brief", "addr", "show", links.INTERFACE]
            done = subprocess.run(show, capture_output=True, text=True)
            assert made.address(0) in done.stdout
            raise KeyError

    with pytest.raises(KeyError):
        fails_inside()
    assert namespaces_of(os.getpid()) == []


# Tests in the background may have been told to ignore Ctrl-C, which a child would inherit.
_HOLDS = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from encke.wire.bench.links import Rate, ShapedLinks
from encke.wire.bench.run import _signals_as_exceptions
with _signals_as_exceptions(), ShapedLinks(2, Rate(None)):
    print("made", flush=True)
    time.sleep(60)
"""


@shaped
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_namespaces_are_gone_after_a_signal(number: signal.Signals) -> None:
    """After SIGKILL by whoever comes next."""
    program = [sys.executable, "-c", _HOLDS]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"made\n"
    assert len(namespaces_of(process.pid)) == 3
    process.send_signal(number)
    process.wait(20)
    if number == signal.SIGKILL:
        with ShapedLinks(1, Rate(None)):
            pass
    assert namespaces_of(process.pid) == []


@shaped
@pytest.mark.slow
def test_the_benchmark_certifies_what_it_times(tmp_path: Path) -> None:
    table = tmp_path / "wire.csv"
    begin = time.monotonic()
    arguments = ["--megabytes", "2", "--batch", "8", "--steps", "1", "--rate", "1gbit"]
    names = "none,fp16,powersgd 1,encke entropy 0.01"
    code = main(["wire", "bench", *arguments, "--contestants", names, "--csv", str(table)])
    assert code == 0
    assert time.monotonic() - begin < 600
    head, *rows = (line.split(",") for line in table.read_text().splitlines())
    ours = dict(zip(head, rows[-1], strict=False))
    assert ours["contestant"] == "encke entropy 0.01"
    assert 0.5 < float(ours["largest_error_of_bound"]) <= 1.0
    assert 0.9 < float(ours["deviation_of_promised"]) < 1.1
    assert namespaces_of(os.getpid()) == []
