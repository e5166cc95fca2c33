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

#: For networks so small that the tape would leave them alone, where that is not the point.
_ANY_PACE = ("--slowdown", "inf")

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
    options = ["--tolerance", "0.02", "--slowdown", "inf", "--log", "kept.jsonl"]
    done = encke("run", *options, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("encke: Sequential (SGD), 5 steps: at most ")
    assert done.stderr.count("\n") == 1
    earlier, line = map(json.loads, (tmp_path / "kept.jsonl").read_text().splitlines())
    assert earlier == {}
    assert line["model"] == "Sequential"
    assert line["steps"] == line["calls"] == 5
    assert 0 < line["peak_stored_bytes"] < line["peak_plain_bytes"] / 4
    assert line["process_peak_bytes"] > line["peak_plain_bytes"]
    assert line["why"] == ""
    assert "process peak" in done.stderr


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
    (told,) = [line for line in run.stderr.splitlines() if line.startswith("encke: ")]
    assert "the script made no torch.optim.Optimizer" in told
    assert "encke.attach(model)" in told
    assert run.stderr.replace(told + "\n", "") == plain.stderr


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
    assert "holds trained parameters of Adam" in told
    assert told.count("\n") == 1
    assert json.loads((tmp_path / "kept.jsonl").read_text())["model"] is None


def test_a_log_that_cannot_be_written_does_not_change_the_exit_code(
    here: Callable[..., tuple[int, str]],
) -> None:
    code, told = here("raise SystemExit(3)\n", "--log", "missing/kept.jsonl")
    assert code == 3
    assert "no log: " in told
    assert "missing/kept.jsonl: No such file or directory" in told


def test_an_error_that_encke_itself_might_raise_is_the_scripts_if_the_script_raised_it(
    here: Callable[..., tuple[int, str]],
) -> None:
    code, told = here("import encke\nraise encke.UnsupportedError('of the script')\n")
    assert code == 1
    assert told.startswith("Traceback")


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM there")
def test_a_script_that_is_terminated_reports_and_ends_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        TRAIN + "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nprint('went on')\n"
    )
    done = encke("run", "train.py", cwd=tmp_path)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == ""
    assert done.stderr.startswith("encke: Sequential (SGD), 5 steps: at most ")


def test_steps_are_those_of_the_optimizer(here: Callable[..., tuple[int, str]]) -> None:
    more = "    for _ in range(3): model(torch.randn(8, 64)).sum().backward()\n"
    accumulating = TRAIN.replace("    loss.backward()\n", more)
    code, told = here(accumulating, "--log", "kept.jsonl")
    assert code == 0
    assert "(SGD), 5 steps" in told
    assert json.loads(Path("kept.jsonl").read_text())["calls"] == 20


def test_a_table_is_printed_if_wanted(here: Callable[..., tuple[int, str]]) -> None:
    _, told = here(TRAIN, "--summary")
    assert "Gelu.self" in told
    assert "held after forward" in told


def test_a_line_now_and_then(
    here: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encke.cli.run._PROGRESS", 0.0)
    _, told = here(TRAIN, "--progress")
    lines = told.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("encke: after ") for line in lines[:5])
    assert "4 steps" in lines[3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_scripted_model_is_trained_plainly(here: Callable[..., tuple[int, str]]) -> None:
    code, told = here(
        TRAIN.replace("optimizer =", "model = torch.jit.script(model)\noptimizer =")
    )
    assert code == 0
    assert "nothing was compressed: RecursiveScriptModule: attach was given" in told
    assert "TorchScript" in told


def test_whatever_goes_wrong_in_attaching_the_script_runs_on(
    here: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr("encke.integrations.script.attach", fail)
    code, told = here(TRAIN)
    assert code == 0
    assert "nothing was compressed: Sequential: ZeroDivisionError: inside" in told


@pytest.mark.parametrize("where", ["keep", "end_forward", "_begin_step", "report"])
def test_whatever_goes_wrong_in_a_forward_pass_the_script_runs_on(
    where: str, here: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from encke.tape import Tape

    count = 0
    original = getattr(Tape, where)

    def fail(*args: object, **kwargs: object) -> object:
        nonlocal count
        count += 1
        if count == 2:
            raise ZeroDivisionError("inside")
        return original(*args, **kwargs)

    monkeypatch.setattr(Tape, where, fail)
    code, told = here(TRAIN + "print('weights', model[0].weight.isfinite().all().item())\n")
    assert code == 0, told
    assert "an error inside Encke ended the tape: ZeroDivisionError: inside" in told
    from torch.overrides import _get_current_function_mode

    assert _get_current_function_mode() is None


def test_a_loss_in_a_method_is_compressed(here: Callable[..., tuple[int, str]]) -> None:
    code, told = here(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))\n"
        "    def loss(self, x): return self.net(x).square().mean()\n"
        "model = Net()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(3):\n"
        "    model.loss(torch.randn(256, 64)).backward()\n"
        "    optimizer.step()\n"
    )
    assert code == 0
    assert "Sequential (SGD), 3 steps" in told


def test_lbfgs_is_lossless_and_the_line_says_so(here: Callable[..., tuple[int, str]]) -> None:
    code, told = here(
        "import torch\n"
        "from torch import nn\n"
        "model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))\n"
        "x = torch.randn(256, 64)\n"
        "optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn='strong_wolfe')\n"
        "def closure():\n"
        "    optimizer.zero_grad()\n"
        "    loss = model(x).square().mean()\n"
        "    loss.backward()\n"
        "    return loss\n"
        "for _ in range(2): optimizer.step(closure)\n"
    )
    assert code == 0
    assert "Sequential (LBFGS), 2 steps" in told
    assert "stored lossless" in told


def test_a_model_that_is_called_but_not_trained_is_said(
    here: Callable[..., tuple[int, str]],
) -> None:
    _, told = here(TRAIN.replace("    optimizer.step()\n", ""))
    assert "no optimizer that trains it took a step" in told


WORKERS = """\
import sys
import torch
from torch import nn

def train(rank):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(256, 64)).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(train, nprocs=2, start_method=sys.argv[1])
    for _ in torch.utils.data.DataLoader(torch.randn(8, 4), num_workers=1):
        pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_that_a_script_starts_are_compressed_too(method: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKERS)
    done = encke("run", *_ANY_PACE, "--log", "kept.jsonl", "train.py", method, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    workers = [line for line in lines if line["process"] != "MainProcess"]
    assert len(workers) == 2  # the loader's process says nothing
    for line in workers:
        assert (line["model"], line["steps"]) == ("Sequential", 3)
        assert 0 < line["peak_stored_bytes"] < line["peak_plain_bytes"] / 4
    assert "2 processes that it started report by themselves" in done.stderr
    assert "the script made no" not in done.stderr


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
        *launch, "-m", "--", "encke", "run", *_ANY_PACE, "--log", "kept.jsonl", "train.py",
        cwd=tmp_path,
    )  # fmt: skip
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
