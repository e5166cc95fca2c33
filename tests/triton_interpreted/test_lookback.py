"""The scan that programs do among themselves, from states as concurrent programs leave them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from encke.ops.triton.kernels import lookback

OWN, END = 1, 2


@triton.jit
def scan_one(state, out, index, parts, length):
    begin = lookback.start_of(state, index.to(tl.int64), parts, length)
    tl.store(out, begin)


@triton.jit
def scan_all(state, out, lengths, parts):
    index = lookback.ticket(state)
    begin = lookback.start_of(state, index, parts, tl.load(lengths + index))
    tl.store(out + index, begin)


def test_programs_in_a_row_add_up() -> None:
    lengths = torch.randint(0, 70_000, (40,), generator=torch.Generator().manual_seed(0))
    state = torch.zeros(lookback.HEAD.value + 40, dtype=torch.int64)
    out = torch.empty(40, dtype=torch.int64)
    scan_all[(40,)](state, out, lengths, 40)
    assert torch.equal(out, lengths.cumsum(0) - lengths)
    assert int(state[1]) == int(lengths.sum())


def test_a_program_looks_back_over_those_that_know_only_their_own_length() -> None:
    """Part 3 knows its end, 4 to 89 only their lengths: part 90 adds up three windows."""
    lengths = torch.arange(91) * 3 + 1
    words = torch.where(torch.arange(91) <= 3, lengths.cumsum(0) * 4 + END, lengths * 4 + OWN)
    state = torch.cat([torch.zeros(2, dtype=torch.int64), words])
    state[2:5] = 0  # programs further back need not have been heard of
    state[2 + 90] = 0
    out = torch.empty(1, dtype=torch.int64)
    scan_one[(1,)](state, out, 90, 91, int(lengths[90]))
    assert int(out) == int(lengths[:90].sum())
    assert int(state[2 + 90]) == int(lengths.sum()) * 4 + END
    assert int(state[1]) == int(lengths.sum())


def test_ends_far_beyond_32_bits_are_kept() -> None:
    far = 2**41 + 5
    state = torch.tensor([0, 0, far * 4 + END, 0])
    out = torch.empty(1, dtype=torch.int64)
    scan_one[(1,)](state, out, 1, 2, 7)
    assert int(out) == far
    assert int(state[1]) == far + 7
