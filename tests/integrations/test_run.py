"""`encke run`: a script behaves as under python, and its activations are compressed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from encke.bound import Lossless, RangeRelative
from encke.cli import main
from encke.control import Comet, Fixed, GroupBits
from encke.errors import BoundError, UnsupportedError
from encke.integrations.following import policy_named

TRAIN = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(5):
    loss = model(torch.randn(256, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

SURROUNDINGS = """\
import atexit, pickle, sys, neighbour

class Thing:
    pass

atexit.register(print, "at exit")
print(__name__, __file__, __package__, __spec__, sys.argv, sys.path[0], neighbour.VALUE)
print(type(pickle.loads(pickle.dumps(Thing()))).__module__)
def f() -> int: raise OSError(2, "nothing there", "file")
if "raise" in sys.argv: f()
if "words" in sys.argv: sys.exit("in words")
sys.exit(7)
"""


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run python to its end; what it started ends with it, also when it takes too long."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def encke(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "encke", *arguments, cwd=cwd)


def test_a_script_is_compressed_and_one_line_tells_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "kept.jsonl").write_text("{}\n")
    options = ["--tolerance", "0.02", "--log", "kept.jsonl"]
    done = encke("run", *options, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("encke: Sequential (SGD), 5 steps: at most ")
    assert done.stderr.count("\n") == 1
    earlier, line = map(json.loads, (tmp_path / "kept.jsonl").read_text().splitlines())
    assert earlier == {}
    assert line["model"] == "Sequential"
    assert line["steps"] == 5
    assert 0 < line["peak_stored_bytes"] < line["peak_plain_bytes"] / 4


@pytest.mark.slow
def test_a_script_that_compiles_its_model_is_compressed_inside_the_graphs(
    tmp_path: Path,
) -> None:
    compiling = TRAIN.replace("for _", "model = torch.compile(model, fullgraph=True)\nfor _")
    (tmp_path / "train.py").write_text(compiling)
    done = encke("run", "--log", "kept.jsonl", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    line = json.loads((tmp_path / "kept.jsonl").read_text())
    assert line["model"] == "OptimizedModule"
    assert line["steps"] == 5
    assert 0 < line["peak_stored_bytes"] < line["peak_plain_bytes"] / 4


@pytest.mark.parametrize("arguments", [["--log", "--", "-h", "raise"], ["words"]])
def test_a_script_sees_what_it_would_see_under_python(
    tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train.py").write_text(SURROUNDINGS)
    (tmp_path / "elsewhere" / "neighbour.py").write_text("VALUE = 42\n")
    script = os.path.join("elsewhere", "train.py")
    plain = python(script, *arguments, cwd=tmp_path)
    run = encke("run", script, *arguments, cwd=tmp_path)
    assert run.returncode == plain.returncode
    assert run.stdout == plain.stdout
    told = "encke: nothing was compressed: the script made no torch.optim.Optimizer\n"
    assert told in run.stderr
    assert run.stderr.replace(told, "") == plain.stderr


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs a script in this process; gives its exit code and what it wrote to stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def run(source: str, *options: str) -> tuple[int, str]:
        (tmp_path / "train.py").write_text(source)
        try:
            code = main(["run", *options, "train.py"])
        except SystemExit as end:
            code = int(str(end.code))
        return code, capsys.readouterr().err

    return run


def test_an_interrupt_ends_a_script_as_the_shell_expects(
    here: Callable[..., tuple[int, str]],
) -> None:
    code, told = here("raise KeyboardInterrupt\n")
    assert code == 128 + signal.SIGINT
    assert told.startswith("Traceback")
    assert "\nKeyboardInterrupt\nencke: nothing was compressed" in told


def test_a_script_that_does_not_parse_or_is_not_there_fails_as_under_python(
    tmp_path: Path, here: Callable[..., tuple[int, str]]
) -> None:
    code, told = here("def (:\n")
    plain = python("train.py", cwd=tmp_path)
    assert code == plain.returncode == 1
    assert told.startswith(plain.stderr)
    missing = encke("run", "missing.py", cwd=tmp_path)
    assert missing.returncode == python("missing.py", cwd=tmp_path).returncode == 2
    assert missing.stderr == "encke: missing.py: No such file or directory\n"


def test_a_model_that_cannot_be_found_is_said_in_one_line(
    tmp_path: Path, here: Callable[..., tuple[int, str]]
) -> None:
    code, told = here(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(64, 64))\n"
        "optimizer = torch.optim.Adam([weight])\n"
        "(torch.randn(256, 64) @ weight).square().mean().backward()\n"
        "optimizer.step()\n",
        *("--log", "kept.jsonl"),
    )
    assert code == 0
    assert told.startswith("encke: nothing was compressed: no module that was called")
    assert told.endswith("holds parameters of Adam\n")
    assert told.count("\n") == 1
    assert json.loads((tmp_path / "kept.jsonl").read_text())["model"] is None


def test_a_log_that_cannot_be_written_does_not_change_the_exit_code(
    here: Callable[..., tuple[int, str]],
) -> None:
    code, told = here("raise SystemExit(3)\n", "--log", "missing/kept.jsonl")
    assert code == 3
    assert "no log: missing/kept.jsonl: No such file or directory" in told


def test_an_error_that_encke_itself_might_raise_is_the_scripts_if_the_script_raised_it(
    here: Callable[..., tuple[int, str]],
) -> None:
    code, told = here("import encke\nraise encke.UnsupportedError('of the script')\n")
    assert code == 1
    assert told.startswith("Traceback")


@pytest.mark.slow
def test_ranks_that_torch_starts_each_compress_their_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch import distributed, nn\n"
        "distributed.init_process_group('gloo')\n"
        "torch.manual_seed(distributed.get_rank())\n"
        "net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))\n"
        "model = nn.parallel.DistributedDataParallel(net)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
        "for _ in range(3):\n"
        "    loss = model(torch.randn(256, 64)).square().mean()\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "total = sum(p.detach().sum() for p in net.parameters())\n"
        "gathered = [torch.zeros(()) for _ in range(2)]\n"
        "distributed.all_gather(gathered, total)\n"
        "assert torch.equal(*gathered)\n"
        "distributed.destroy_process_group()\n"
    )
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = python(
        *launch, "-m", "--", "encke", "run", "--log", "kept.jsonl", "train.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert sorted(line["rank"] for line in lines) == [0, 1]
    for line in lines:
        assert line["model"] == "Sequential"
        assert line["steps"] == 3
        assert 0 < line["peak_stored_bytes"] < line["peak_plain_bytes"] / 4
        assert f"encke, rank {line['rank']}: Sequential (SGD), 3 steps" in done.stderr


def test_help_does_not_import_torch() -> None:
    program = (
        "import sys; from encke.cli import main\n"
        "try: main(['run', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'numpy', 'transformers', 'lightning'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: encke run" in done.stdout


def test_policies_are_made_from_their_names() -> None:
    def made(text: str) -> object:
        make = policy_named(text)
        assert make is not None
        return make(None, [])  # type: ignore[arg-type]

    assert policy_named("adaptive") is None
    assert isinstance(made("comet"), Comet)
    bits = made("bits:4")
    assert isinstance(bits, GroupBits)
    assert bits.mean == 4
    for text, bound in (("range:0.02", RangeRelative(0.02)), ("lossless", Lossless())):
        fixed = made(text)
        assert isinstance(fixed, Fixed)
        assert fixed.bound == bound


@pytest.mark.parametrize("text", ["", "best", "range", "range:wide", "bits:99", "tight:1"])
def test_a_policy_that_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError):
        policy_named(text)


def test_settings_that_cannot_be_meant_are_refused_before_the_script_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise RuntimeError('it ran')\n")
    with pytest.raises(BoundError):
        policy_named("abs:-1")
    for options in (["--tolerance", "7"], ["--policy", "lossless", "--tolerance", "0.1"]):
        assert main(["run", *options, str(script)]) == 2
        assert capsys.readouterr().err.startswith("encke: ")
