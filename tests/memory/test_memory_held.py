"""How much memory the pool holds, and when it gives memory back."""

from __future__ import annotations

import pytest
from pool_process import reason, run

pytestmark = pytest.mark.skipif(bool(why := reason()), reason=why)

#: Blocks of equal sizes, some of which stay: what a training does with its activations.
GROWTH = """
sizes = [0.3 + 0.07 * i for i in range(20)]
blocks = [block(size) for size in sizes]
before = resident()
for step in range(200):
    for i in range(step % 2, len(sizes), 2):
        blocks[i] = None
        small = torch.ones(200)
        blocks[i] = block(sizes[i])
print((resident() - before) // 1024)
"""


def test_a_freed_place_serves_the_next_block_of_the_same_size() -> None:
    run("""
    first = block(3)
    guard = block(1)
    place = first.data_ptr()
    del first
    again = block(3)
    assert again.data_ptr() == place
    """)


@pytest.mark.slow
def test_equal_sizes_that_come_and_go_do_not_make_the_process_grow() -> None:
    grown = int(run(GROWTH))
    assert grown < 4096
    assert grown < int(run(GROWTH, install=False)) + 1024  # no more than with glibc


def test_a_steady_loop_gives_nothing_back_and_takes_nothing_fresh() -> None:
    run("""
    def step():
        kept = []
        for i in range(60):
            kept.append(block(0.5 + i % 7))
            block(1 + i % 3)
        while kept:
            kept.pop()
            block(2)
    for _ in range(10):
        step()
    before = now()
    for _ in range(20):
        step()
    after = now()
    assert after.returned - before.returned < 1 * MB, after
    assert after.fresh - before.fresh < 1 * MB, after
    """)


def test_memory_of_a_large_evaluation_goes_back_to_the_system() -> None:
    run("""
    churn(300)
    start = resident()
    large = [block(10) for _ in range(30)]
    del large
    assert resident() - start > 250 * MB  # kept: it may be needed again
    churn(200)
    assert resident() - start < 16 * MB, resident() - start
    assert now().returned > 250 * MB
    """)


def test_frees_alone_give_memory_back_too() -> None:
    run("""
    small = [block(0.125) for _ in range(300)]
    large = block(300)
    start = resident()
    del large
    while small:
        small.pop()
    assert start - resident() > 280 * MB
    """)


@pytest.mark.slow
def test_a_few_blocks_over_some_seconds_are_enough() -> None:
    run("""
    import time
    start = resident()
    large = [block(10) for _ in range(20)]
    del large
    for _ in range(4):
        time.sleep(1.05 * now().window_seconds)
        block(0.125)
    assert resident() - start < 16 * MB
    """)


def test_resident_pages_stay_within_the_recent_peak_2_percent_and_4_mb() -> None:
    run("""
    import random
    random.seed(1)
    blocks = []
    for step in range(3000):
        blocks.append(block(random.choice([0.1, 0.3, 1, 1.7, 3])))
        if len(blocks) > 40:
            blocks.pop(random.randrange(len(blocks)))
        s = now()
        assert s.live <= s.resident <= s.peak_live * 1.02 + 4 * MB + resource.getpagesize(), s
    """)


def test_trim_gives_everything_back_that_is_free() -> None:
    run("""
    large = block(100)
    kept = block(5)
    before = resident()
    del large
    assert encke.memory.pool().trim() >= 100 * MB
    assert before - resident() > 95 * MB
    assert now().resident == now().live
    assert bool((kept == 1).all())
    """)


def test_statistics_count_blocks_bytes_and_peaks() -> None:
    run("""
    assert now().live == now().blocks == now().allocations == 0
    first, second = block(2), block(3)
    small = torch.ones(100)  # the C library's
    assert now().live == 5 * MB and now().blocks == now().allocations == 2
    del first
    assert now().live == 3 * MB and now().peak_live == 5 * MB and now().blocks == 1
    encke.memory.pool().reset_peak()
    assert now().peak_live == 3 * MB
    assert now().peak_resident == now().resident
    """)
