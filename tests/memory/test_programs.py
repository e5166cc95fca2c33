"""What programs do with tensors goes on as before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pool_process import reason, run

pytestmark = pytest.mark.skipif(bool(why := reason()), reason=why)

TRAINING = """
torch.manual_seed(0)
from torch import nn
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 10),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(8):
    x, y = torch.randn(32, 3, 16, 16), torch.randint(0, 10, (32,))
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
"""


@pytest.mark.slow
def test_losses_are_the_same_bits_with_and_without_the_pool() -> None:
    served = "assert now().allocations > 100"
    assert run(TRAINING + served) == run(TRAINING, install=False)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_never_overlap(seed: int) -> None:
    run(f"""
    import random
    random.seed({seed})
    held = {{}}
    for number in range(4000):
        if held and random.random() < (0.3 if number // 500 % 2 else 0.6):
            value = random.choice(list(held))
            x = held.pop(value)
            assert bool((x == value).all()), value
        else:
            count = random.choice([10, 16384, 20000, 70000, 300000, random.randrange(1, 10**6)])
            held[number] = torch.full((count,), number, dtype=torch.int32)
    assert all(bool((x == value).all()) for value, x in held.items())
    held.clear()
    x = None
    assert now().blocks == 0
    """)


def test_blocks_from_before_the_installation_are_freed() -> None:
    run(
        """
        before = [block(size) for size in (0.1, 1, 40)]
        assert encke.memory.install()
        after = [block(size) for size in (0.1, 1, 40)]
        assert now().blocks == 3
        assert all(bool((x == 1).all()) for x in before + after)
        del before, after
        assert now().blocks == 0
        """,
        install=False,
    )


def test_pages_of_libc10_are_as_protected_as_before() -> None:
    run(
        """
        def protections():
            with open("/proc/self/maps") as file:
                parts = [line.split() for line in file if line.rstrip().endswith("/libc10.so")]
            return [part[:2] for part in parts]
        before = protections()
        assert encke.memory.install()
        assert protections() == before and len(before) >= 2
        encke.memory.uninstall()
        assert protections() == before
        """,
        install=False,
    )


def test_live_blocks_outlive_uninstalling() -> None:
    run("""
    held = [block(size, value=size) for size in (1, 2, 50)]
    encke.memory.uninstall()
    pool = encke.memory.pool()
    assert not pool.is_installed and "uninstall" in pool.reason
    new = block(5)
    assert now().blocks == 3
    assert all(bool((x == x[0]).all()) for x in held)
    before = resident()
    held.clear()
    assert before - resident() > 40 * MB
    assert now().live == now().resident == 0, now()
    assert encke.memory.install()
    again = block(1)
    assert now().blocks == 1
    """)


def test_arrays_share_memory_with_tensors_and_outlive_them() -> None:
    run("""
    import numpy
    array = block(3, value=7.0).numpy()
    churn(50, 3)
    assert (array == 7).all()
    shared = torch.from_numpy(numpy.full(10**6, 5.0))
    view = shared[10:]
    del shared
    churn(50, 8)
    assert bool((view == 5).all())
    exchanged = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(block(2, 3.0)))
    churn(20, 2)
    assert bool((exchanged == 3).all())
    del array, view, exchanged
    assert now().blocks == 0
    """)


def test_tensors_are_resized_saved_loaded_and_shared(tmp_path: Path) -> None:
    run(f"""
    x = block(1, value=2.0)
    x.resize_(10**6)
    assert bool((x[: MB // 4] == 2).all())
    path = {str(tmp_path / "x.pt")!r}
    y = torch.arange(10**6)
    torch.save({{"x": x, "y": y}}, path)
    loaded = torch.load(path)
    assert torch.equal(loaded["y"], y)
    mapped = torch.load(path, mmap=True)
    assert torch.equal(mapped["y"], y)
    y.share_memory_()
    assert torch.equal(loaded["y"], y)
    """)


def test_an_allocation_larger_than_the_machine_raises_the_usual_error() -> None:
    run("""
    for exponent in (44, 50, 62):
        try:
            torch.empty(2**exponent, dtype=torch.uint8)
        except RuntimeError as error:
            assert "allocate" in str(error), error
        else:
            raise SystemExit("allocated 2**%d bytes" % exponent)
    assert now().passed_on == 3
    assert bool((block(2) == 1).all())
    """)


def test_threads_free_what_other_threads_allocated() -> None:
    run("""
    import queue, random
    handed = queue.Queue(maxsize=30)
    wrong = []
    def make(seed):
        chooser = random.Random(seed)
        for number in range(300):
            count = chooser.randrange(10, 400000)
            handed.put(torch.full((count,), seed * 1000 + number))
        handed.put(None)
    def take():
        while (x := handed.get()) is not None:
            if not bool((x == x[0]).all()):
                wrong.append(x)
    threads = [threading.Thread(target=make, args=(seed,)) for seed in (1, 2)]
    threads += [threading.Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    assert now().blocks == 0
    """)


def test_backward_runs_in_the_threads_of_autograd() -> None:
    run("""
    x = torch.randn(512, 512, requires_grad=True)
    def work():
        for _ in range(20):
            (x @ x).relu().sum().backward()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bool(x.grad.isfinite().all())
    """)


def test_both_processes_go_on_after_a_fork() -> None:
    run("""
    held = block(20, value=3.0)
    stop = threading.Event()
    def work():
        while not stop.is_set():
            block(1.5)
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(10):
        child = os.fork()
        if child == 0:
            good = bool((held == 3).all())
            held.fill_(4.0)
            del held
            churn(300, 0.5)
            good &= now().returned > 0 and encke.memory.pool().is_installed
            os._exit(0 if good else 1)
        churn(20, 2)
        assert os.waitpid(child, 0)[1] == 0
        assert bool((held == 3).all())
    stop.set()
    thread.join()
    """)


LOADER = """
import torch, encke.memory
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, i):
        return torch.full((50000,), float(i)) + torch.zeros(50000)

if __name__ == "__main__":
    torch.set_num_threads(1)
    assert encke.memory.install()
    for method in {methods}:
        seen = 0.0
        for batch in DataLoader(Data(), 8, num_workers=2, multiprocessing_context=method):
            seen += float(batch.mean())
        assert seen / 6 == 23.5, seen
"""


def run_file(path: Path, program: str) -> None:
    path.write_text(program)
    run(f"import runpy; runpy.run_path({str(path)!r}, run_name='__main__')", install=False)


def test_workers_of_a_data_loader_are_forked(tmp_path: Path) -> None:
    run_file(tmp_path / "loader.py", LOADER.format(methods=["fork"]))


@pytest.mark.slow
def test_workers_of_a_data_loader_are_spawned(tmp_path: Path) -> None:
    path = tmp_path / "loader.py"
    path.write_text(LOADER.format(methods=["spawn"]))
    program = (
        f"import subprocess, sys; subprocess.run([sys.executable, {str(path)!r}], check=True)"
    )
    run(program, install=False)


def test_the_examples_of_the_document_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "memory.md"
    programs = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(programs) >= 2
    assert "not" not in run("\n".join(programs), install=False)
