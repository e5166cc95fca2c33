"""How long decoded values stay."""

from __future__ import annotations

import weakref

import pytest
import torch

import encke
from encke.codec import compress
from encke.tape.policy import Site
from encke.tape.storage.byte_count import ByteCount
from encke.tape.storage.stored_tensor import DecodedCache, StoredTensor


def slot_asked_by(
    *orders: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[StoredTensor, list[int]]:
    """A slot that ops in these places of the forward pass will ask, and its decodings."""
    recent = DecodedCache()
    packed = compress(torch.randn(64, 64), encke.Absolute(0.1))
    slot = StoredTensor(Site(module="", op="Relu", role="result"), recent=recent)
    slot.fill(packed, ByteCount())
    for order in orders:
        recent.order = order
        slot.will_be_asked()
    decodings: list[int] = []
    decode = StoredTensor._unpacked

    def counted(self: StoredTensor) -> torch.Tensor:
        decodings.append(1)
        return decode(self)

    monkeypatch.setattr(StoredTensor, "_unpacked", counted)
    return slot, decodings


def test_what_neighbouring_ops_ask_for_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slot, decodings = slot_asked_by(7, 8, 9, monkeypatch=monkeypatch)
    first, second, third = (slot.value() for _ in range(3))
    assert first is second is third
    assert len(decodings) == 1


def test_what_a_far_op_will_ask_for_is_let_go_and_decoded_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot, decodings = slot_asked_by(3, 12, monkeypatch=monkeypatch)
    first = weakref.ref(slot.value())
    assert first() is None
    slot.value()
    assert len(decodings) == 2
