"""How a saved tensor is kept: what its op needs of it, shared, derived, or packed."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from encke.bound import Lossless
from encke.codec import Packed, compress
from encke.codec.contract import BOOLS, FLOATS, INTEGERS
from encke.codec.registry import by_name
from encke.codec.unsettled import Unsettled, can_go_on, compress_without_waiting
from encke.tape.autograd import nodes as graph
from encke.tape.batch_norm.channels import Channels, channels_of
from encke.tape.batch_norm.masked import BatchNormMask, DxCorrection, ReluOutputMask, can_gate
from encke.tape.batch_norm.pending import Passage, PendingNorm, PendingNorms
from encke.tape.batch_norm.residual import ResidualNorm, added_to, affine_of
from encke.tape.cost.pace import SMALL, Pace, now
from encke.tape.effects.rows import ExactRows
from encke.tape.needs import max_pool as windows
from encke.tape.needs.table import EXACT, INDEX, Need, Rule, exact, find, is_two_valued
from encke.tape.observe.records import Record, Records
from encke.tape.policy import Policy, SavedTensor, Site, StorageDecision
from encke.tape.recompute import rerun
from encke.tape.recompute.finder import RecomputeFinder, remember_output
from encke.tape.storage import sharing as store
from encke.tape.storage.byte_count import (
    ByteCount,
    SavedStorage,
    Storages,
    StoredBytes,
    WaitingBytes,
)
from encke.tape.storage.codec_cache import CodecCache
from encke.tape.storage.sharing import Geometry
from encke.tape.storage.sources import (
    CombinedSource,
    Integers,
    RecomputedSource,
    Shape,
    SignMask,
    StoredSource,
    TensorSource,
    TwoValueMask,
)
from encke.tape.storage.stored_tensor import DecodedCache, StoredTensor
from encke.tape.transfer.side_stream import SideStreams, TransferredTensor


class TensorRecorder:
    """Keeps single tensors; `Tape` says which, and when.

    step, order  of the forward pass, and of the op in it
    packed       called with every slot that is packed and the exact tensor it was packed from
    """

    def __init__(self, policy: Policy, pace: Pace) -> None:
        self.policy, self.pace = policy, pace
        self.ledger = ByteCount()
        self.storages = Storages(self.ledger)
        self.records = Records()
        self.recent = DecodedCache()
        self.step = 0
        self.order = 0
        self.packed: list[Callable[[StoredTensor, Tensor], None]] = []
        self.waiting = PendingNorms()
        #: Hooks for the node whose tensors are being kept.
        self.straightened: list[DxCorrection] = []
        self._choices = CodecCache()
        self._lanes: SideStreams | None = None
        self._unsettled: deque[weakref.ref[Unsettled]] = deque()

    def keep(self, node: Any, site: Site, t: Tensor, storage: SavedStorage) -> TensorSource:
        """Keep what the backward of `node` needs of a tensor that it saved."""
        rule = find(site.op, site.role, node) or exact(f"no rule for {site.op}")
        if t.numel() * t.element_size() < SMALL:
            return self._as_it_is(site, t, storage, "small")
        if not t.is_floating_point() and rule.need is not Need.RERUN:
            rule = _for_complex(rule) if t.is_complex() else _for_integers(rule, t)
        need = rule.need
        if (
            t.is_neg() and need is not Need.SHAPE
        ):  # codecs read memory, which has the other sign
            return self._as_it_is(site, t, storage, "a view with the sign turned")
        if need is Need.SHAPE:
            return self._noted(Shape(t), site, t, 0, "only its shape is needed")
        if need is Need.SIGN:
            return self._sides(node, site, t, storage, rule)
        if need is Need.WINDOW:
            return self._window(node, site, t, storage)
        if need is Need.INDEX:
            return self._integers(site, t)
        if need is Need.RERUN:
            again = rerun.result_of(node, site.role)
            if again is not None:
                self.records.share(site, next(again.slots()).site, t, again.how)
                return again
            return self._as_it_is(site, t, storage, "its input is not kept")
        if need is Need.EXACT:
            return self._as_it_is(site, t, storage, rule.why)
        if need is Need.MASK:
            return self._constant(site, t, storage, rule.why)
        if need is not Need.VALUE and not t.requires_grad:
            return self._constant(site, t, storage)
        if t.is_complex():
            return self._complex(site, t, storage)
        if t.dtype not in FLOATS:
            return self._as_it_is(site, t, storage, f"{t.dtype} values")
        return self._values(
            site, t, storage, node=node, channels=channels_of(node, site.op, site.role, t)
        )

    def _complex(self, site: Site, t: Tensor, storage: SavedStorage) -> TensorSource:
        """Real and imaginary parts, side by side as they lie in memory."""
        turned = t.is_conj()
        parts = self._values(site, torch.view_as_real(t.conj() if turned else t), storage)

        def compute(x: Tensor) -> Tensor:
            z = torch.view_as_complex(x if x.stride(-1) == 1 else x.contiguous())
            return z.conj() if turned else z

        return RecomputedSource(parts, compute, parts.how)

    def _integers(self, site: Site, t: Tensor) -> TensorSource:
        once = store.unexpanded(t)
        if once is not None:
            return _expanded(self._integers(site, once), t)
        source = Integers(t, self.ledger)
        return self._noted(source, site, t, source.nbytes, "narrowed")

    def _values(
        self,
        site: Site,
        t: Tensor,
        storage: SavedStorage,
        *,
        node: Any = None,
        channels: Channels | None = None,
    ) -> TensorSource:
        once = store.unexpanded(t)
        if once is not None:
            if once.numel() * once.element_size() < SMALL:
                return self._as_it_is(site, t, storage, "small")
            return _expanded(self._values(site, once, storage), t)
        geometry = Geometry.of(t)
        found = store.find_values(storage, geometry)
        sight = SavedTensor(
            site=site,
            tensor=t,
            step=self.step,
            order=self.order,
            channels=channels is not None,
        )
        treatment = self.policy.treat(sight)
        if found is not None:
            slot = next(found.slots())
            self.records.share(site, slot.site, t, "shared")
            remember_output(t, found)
            return found
        if treatment.derive:
            exact = isinstance(treatment.bound, Lossless)
            deriver = RecomputeFinder(arithmetic=not exact, recompute=treatment.recompute)
            derived = deriver.value_of(t.grad_fn, tuple(t.shape))
            if derived is not None:
                if not isinstance(derived, RecomputedSource | CombinedSource):
                    derived = RecomputedSource(derived, lambda x: x, "copy")
                self.records.share(site, next(derived.slots()).site, t, derived.how)
                return derived
        if treatment.bound is None or storage.is_held():
            why = treatment.why if treatment.bound is None else "kept anyway"
            return self._as_it_is(site, t, storage, why)
        may = treatment.normalise and self._may_gate(treatment, t)
        if channels is not None and can_gate(node) and may:
            return self._wait(node, site, t, storage, treatment, channels)
        sides = store.find_sides(storage, geometry)
        sieve = self._sieve(sides, t, treatment) if channels is None else None
        slot = self.pack(site, t, treatment, channels=channels, gate=sieve)
        self._watched(slot, t, treatment)
        store.remember(storage, geometry, slot)
        if sides is not None:
            self._tell(sides, slot)
        source = StoredSource(slot)
        remember_output(t, source)
        return self._noted(source, site, t, slot.nbytes, treatment.why or slot.why, slot)

    def _watched(self, slot: StoredTensor, t: Tensor, treatment: StorageDecision) -> None:
        """Let those see it who asked to, and note what backward is to find out."""
        for see in self.packed:
            see(slot, t)
        slot.observed = not slot.is_exact and (treatment.observe or treatment.check)
        slot.probed = treatment.probe
        if treatment.check:
            slot.check = ExactRows(t, self.ledger, seed=self.step)

    def _tell(self, sides: SignMask, slot: StoredTensor) -> None:
        """The values of a ReLU's result are in `slot`."""
        if slot.exact_zeros:
            self.records.follow(sides.site, slot.site)
            sides.follow(StoredSource(slot))
        else:
            sides.known_to(slot)

    def _sieve(
        self, sides: SignMask | None, t: Tensor, treatment: StorageDecision
    ) -> ReluOutputMask | None:
        """What packs a ReLU's result without its zeros, if that may be."""
        if sides is None or not sides.has_bits or not self._may_gate(treatment, t):
            return None
        if not ReluOutputMask.fits(sides, t):
            return None
        sides.gates = True
        return ReluOutputMask(sides, t)

    def _may_gate(self, treatment: StorageDecision, t: Tensor) -> bool:
        """Whether only what a ReLU passes may be kept: on the host, packed."""
        return (
            treatment.gate
            and treatment.bound is not None
            and not isinstance(treatment.bound, Lossless)
            and not treatment.offload
            and self._lanes is None
            and t.device.type == "cpu"
            and store.is_dense(t)
        )

    def _wait(
        self,
        node: Any,
        site: Site,
        t: Tensor,
        storage: SavedStorage,
        treatment: StorageDecision,
        channels: Channels,
    ) -> TensorSource:
        """A norm's input, held as it is until it is known whether a ReLU follows."""
        exact, held = t.detach(), WaitingBytes(self.ledger, t.numel() * t.element_size())
        slot = StoredTensor.exact(site, t, held, recent=self.recent, why="waits for its ReLU")
        slot.observed = treatment.observe or treatment.check
        slot.probed = treatment.probe
        source = StoredSource(slot)

        def pack(passage: Passage | None) -> None:
            began = now()
            decide(passage)
            saved = exact.numel() * exact.element_size() - slot.nbytes
            self.pace.spend_on(site, now() - began, saved)

        def decide(passage: Passage | None) -> None:
            gate = None
            if (
                passage is not None
                and not slot.is_shared
                and BatchNormMask.fits(passage.sides, exact)
            ):
                gate = BatchNormMask(passage.sides, exact, channels, self.ledger)
                passage.sides.gates = True
                slot.will_be_asked_last()
                if treatment.residual and self._follows(node, slot, exact, passage, gate):
                    slot.channels = channels
                    return
            self.pack(site, exact, treatment, channels=channels, gate=gate, into=slot)
            self._watched(slot, exact, treatment)
            why = treatment.why or slot.why
            if gate is not None:
                why = f"{why}; only where its ReLU passes"
            self._noted(source, site, exact, slot.nbytes, why, slot)

        store.remember(storage, Geometry.of(t), slot)
        self.waiting.add(PendingNorm(node, tuple(t.shape), pack))
        self.straightened.append(DxCorrection(slot, node._saved_weight))
        return self._noted(source, site, t, slot.nbytes, slot.why, slot)

    def _follows(
        self,
        node: Any,
        slot: StoredTensor,
        exact: Tensor,
        passage: Passage,
        gate: BatchNormMask,
    ) -> bool:
        """Let a norm's input follow from the sum behind it (`batch_norm.residual`), if it can.

        What the ReLU puts out is then kept here, for whoever asks for it.
        """
        out, sides = passage.out, passage.sides
        if passage.sum is None or out is None or out.dtype != exact.dtype:
            return False
        added = added_to(passage.sum, node, sides)
        affine = affine_of(node, exact.dtype) if added is not None else None
        storage = self.storages.of(out)
        if added is None or affine is None or storage.is_held() or not store.is_dense(out):
            return False
        sight = SavedTensor(site=sides.site, tensor=out, step=self.step, order=self.order)
        treatment = self.policy.treat(sight)
        if treatment.bound is None or isinstance(treatment.bound, Lossless):
            return False
        gate.close(exact)  # for the means of what passes and of what does not
        sieve = self._sieve(sides, out, treatment)
        kept = self.pack(sides.site, out, treatment, gate=sieve)
        if sieve is None and not kept.exact_zeros:
            return False
        self._watched(kept, out, treatment)
        store.remember(storage, Geometry.of(out), kept)
        values = StoredSource(kept)
        bits = sides.nbytes
        self._tell(sides, kept)
        slot.gate = gate
        slot.follow(ResidualNorm(values, added, affine, gate))
        for see in self.packed:
            see(slot, exact)
        stored = kept.nbytes + (bits if sieve is not None else 0)
        self._noted(values, sides.site, out, stored, treatment.why or kept.why, kept)
        self.records.share(slot.site, sides.site, exact, "the sum less what was added:")
        return True

    def pack(
        self,
        site: Site,
        t: Tensor,
        treatment: StorageDecision,
        *,
        channels: Channels | None = None,
        gate: BatchNormMask | ReluOutputMask | None = None,
        lasting: bool = True,
        into: StoredTensor | None = None,
    ) -> StoredTensor:
        """The values of `t`, packed as `treatment` says.

        gate     lets through what is packed
        into     the slot to fill, in place of a new one
        lasting  whether `t` stays as it is for as long as anybody refers to it. Then a device
                 need not be waited for: what turns out too long is packed again
        """
        bound = treatment.bound
        assert bound is not None
        exact = isinstance(bound, Lossless)
        codec = treatment.codec
        number = bound.number
        if codec == "auto":
            codec = self._choices.get(site, self.step, number) or "auto"
        zeros = codec == "auto" or by_name(codec).keeps_zeros
        if exact or not treatment.normalise:
            channels = None
        options: dict[str, Any] = {
            "codec": codec,
            "dither": treatment.dither and not exact and zeros,
            "keep_nonzero": not exact and zeros and gate is None,
            "seed": (self.step << 20) + self.order if not exact else 0,
        }
        lane = None if self._lanes is None else self._lanes.of(t.device)

        def values() -> Tensor:
            if gate is not None:
                return gate.close(t)
            return t if channels is None else channels.normalise(t)

        def make() -> Packed:
            return compress(values(), bound, prefer=treatment.prefer, **options)  # type: ignore[arg-type]

        packed: Packed | TransferredTensor | Unsettled | None = None
        if lane is not None:
            packed = lane.pack(t, make, offload=treatment.offload)
        elif lasting and not treatment.offload and can_go_on(t.device, codec, bound):
            packed = self._go_on(compress_without_waiting(values(), bound, **options))
        slot = StoredTensor(site, recent=self.recent) if into is None else into
        slot.fill(packed or make(), self.ledger, offload=treatment.offload)
        if codec == "auto":
            self._choices.put(site, self.step, number, slot.codec)
        slot.channels, slot.gate = channels, gate
        slot.exact_zeros = zeros and channels is None and gate is None
        return slot

    def _go_on(self, packed: Unsettled) -> Unsettled:
        """Settle what the device has finished meanwhile, so that tensors are let go."""
        while self._unsettled:
            first = self._unsettled[0]()
            if first is not None and not first.ready():
                break
            self._unsettled.popleft()
            if first is not None:
                first.settle()
        self._unsettled.append(weakref.ref(packed))
        return packed

    def _as_it_is(self, site: Site, t: Tensor, storage: SavedStorage, why: str) -> TensorSource:
        size = t.numel() * t.element_size()
        if size < SMALL <= storage.nbytes and not storage.is_held():
            # A small slice must not keep alive all that it was cut from.
            geometry = Geometry.of(t)
            known = store.find_exact(storage, geometry)
            if known is not None:
                self.records.share(site, known.site, t, "shared")
                return StoredSource(known)
            t, held = t.clone(), StoredBytes(self.ledger, size)
            slot = StoredTensor.exact(site, t, held, recent=self.recent, why=why)
            store.remember(storage, geometry, slot)
            return self._noted(StoredSource(slot), site, t, slot.nbytes, why, slot)
        slot = StoredTensor.exact(site, t, storage.hold(), recent=self.recent, why=why)
        store.remember(storage, Geometry.of(t), slot)
        source = StoredSource(slot)
        remember_output(t, source)
        return self._noted(source, site, t, slot.nbytes, why, slot)

    def _constant(
        self,
        site: Site,
        t: Tensor,
        storage: SavedStorage,
        why: str = "a constant of the graph",
    ) -> TensorSource:
        may = store.unexpanded(t) is None and not t.is_complex() and not storage.is_held()
        scale = is_two_valued(t) if may else None
        if scale is None:
            return self._as_it_is(site, t, storage, why)
        source = TwoValueMask(t, scale, self.ledger)
        return self._noted(source, site, t, source.nbytes, "two values: one bit each")

    def _sides(
        self, node: Any, site: Site, t: Tensor, storage: SavedStorage, rule: Rule
    ) -> TensorSource:
        assert rule.sides is not None
        mask = rule.split(t, node) if rule.split is not None else None
        sides = SignMask(site, t, rule.sides(node), self.ledger, mask=mask)
        if rule.zero_tells:
            store.remember(storage, Geometry.of(t), sides)
        return self._noted(sides, site, t, sides.nbytes, "only its sign is needed")

    def _window(self, node: Any, site: Site, t: Tensor, storage: SavedStorage) -> TensorSource:
        pooled = graph.saved_tensor(node, "self")
        places = None if pooled is None else windows.to_places(t, node, pooled.shape)
        if places is None:
            source = Integers(t, self.ledger)
        else:
            source = Integers(places[0], self.ledger, dtype=t.dtype, restore=places[1])
        return self._noted(source, site, t, source.nbytes, "place in the window")

    def _noted(
        self,
        source: TensorSource,
        site: Site,
        t: Tensor,
        stored: int,
        why: str,
        slot: StoredTensor | None = None,
    ) -> TensorSource:
        self.records.keep(
            Record(
                site=site,
                shape=tuple(t.shape),
                plain=t.numel() * t.element_size(),
                stored=stored,
                how=source.how if slot is None else slot.kind,
                codec=slot.codec if slot is not None else source.how,
                error=slot.error if slot is not None else 0.0,
                why=why,
            )
        )
        return source


def _expanded(source: TensorSource, t: Tensor) -> TensorSource:
    """What `source` keeps once, repeated as in `t`."""
    shape = tuple(t.shape)
    return RecomputedSource(source, lambda x: x.expand(shape), source.how)


def _for_complex(rule: Rule) -> Rule:
    """A complex number lies on no side of a threshold."""
    return EXACT if rule.need in (Need.SIGN, Need.WINDOW) else rule


def _for_integers(rule: Rule, t: Tensor) -> Rule:
    """Integers and truth values are never lossy."""
    if rule.need in (Need.SHAPE, Need.WINDOW, Need.EXACT):
        return rule
    return INDEX if t.dtype in BOOLS | INTEGERS else EXACT
