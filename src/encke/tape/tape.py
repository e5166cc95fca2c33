"""The tape: takes over what autograd saves, keeps it small, gives it back in backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from encke.bound import Lossless
from encke.codec import Packed, compress
from encke.codec.contract import BOOLS, FLOATS, INTEGERS
from encke.codec.registry import by_name
from encke.errors import UnsupportedError
from encke.tape import graph, store, windows
from encke.tape.channels import Channels, channels_of
from encke.tape.choice import Choices
from encke.tape.derive import Deriver
from encke.tape.effects import Probe
from encke.tape.handle import Handle
from encke.tape.kept import (
    Derived,
    Integers,
    Recent,
    Shape,
    Sides,
    Slot,
    Source,
    TwoValued,
    Whole,
)
from encke.tape.lane import Lanes
from encke.tape.ledger import Held, Ledger, SavedStorage, Storages
from encke.tape.protocol import Effect, Policy, Sight, Site, Treatment
from encke.tape.records import Record, Records
from encke.tape.rules import EXACT, INDEX, Need, Rule, find, is_two_valued, known
from encke.tape.store import Geometry
from encke.tape.telemetry import Target, Telemetry, log_to
from encke.tape.watch import Watch, Whereabouts, tensors_in

if TYPE_CHECKING:
    from encke.tape.compiled.graphs import CompiledGraph

#: Tensors of fewer bytes stay as they are: a header would eat what is saved.
SMALL = 4096


class Tape:
    """Keeps what backward needs, within bounds that `policy` sets.

    Enter it around a forward pass; backward may run whenever and as often as it likes. See
    `encke.attach`, which enters it by itself.
    """

    def __init__(self, policy: Policy, *, model: nn.Module | None = None) -> None:
        self.policy = policy
        self.ledger = Ledger()
        self.records = Records()
        self.step = 0
        self.model = model
        self._where = Whereabouts(model)
        self._storages = Storages(self.ledger)
        self.recent = Recent()
        self._choices = Choices()
        self._lanes: Lanes | None = None
        self._watch: Watch | None = None
        self._depth = 0
        self._pauses = 0
        #: Bytes stored, and plain, when the last forward pass had ended.
        self.last_forward = 0, 0
        self._calls: list[FrameType] = []
        self._last = -1
        self.order = 0
        self._counts: dict[tuple[str, str, str], int] = {}
        self._names: dict[int, str] = {}
        self._state: set[int] = set()
        self.detachers: list[Callable[[], None]] = []
        #: Compiled graphs that keep their tensors here, and those that ran in this step.
        self.graphs: list[CompiledGraph] = []
        self._ran: set[int] = set()
        self._detached = False
        self.listeners: list[Callable[[Effect], None]] = []
        self.logs: list[Telemetry] = []
        #: Called with every slot that is packed and the exact tensor it was packed from.
        self.packed: list[Callable[[Slot, Tensor], None]] = []

    # -- what it holds -------------------------------------------------------------------

    @property
    def stored_bytes(self) -> int:
        """Bytes held now for backward: packed, and kept as they are."""
        return self.ledger.stored

    @property
    def plain_bytes(self) -> int:
        """Bytes that autograd alone would hold now: unique storages, no parameters."""
        return self.ledger.plain

    def summary(self) -> str:
        """A table of what is kept, layer by layer: how, how small, with which error, why."""
        from encke.tape.summary import table

        return table(self)

    def log_to(self, target: Target, *, every: int = 1, tensors: int = 50) -> Telemetry:
        """Record every step to a path (JSON lines), a function, or a SummaryWriter.

        every    steps between records of a step
        tensors  steps between records of every tensor; observed steps have them too

        docs/telemetry.md says what is in them. The last are written at `detach` or at exit.
        """
        return log_to(self, target, every=every, tensors=tensors)

    def use_side_stream(self, lanes: Lanes | None = None) -> None:
        """From now on pack on a stream of its own, where the device has streams (CUDA, ROCm).

        What is to be offloaded goes to pinned memory on that stream, and comes back a few
        tensors before backward asks for it. docs/gpu.md says what was shown of it.
        """
        self._lanes = Lanes() if lanes is None else lanes

    def detach(self) -> None:
        """Let the model go: it is as it was before `attach`."""
        self._detached = True
        for undo in self.detachers:
            undo()
        self.detachers.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, forward passes keep their tensors as plain autograd does."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def state_dict(self) -> dict[str, Any]:
        """The step and what the policy has learnt, for a checkpoint."""
        return {
            "version": 1,
            "step": self.step,
            "policy": self.policy.state_dict(),
            "choices": self._choices.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state.get("version") != 1:
            raise UnsupportedError(
                f"tape state has version {state.get('version')!r}, this reads 1; it comes from "
                "another release: leave it out and the controller learns anew"
            )
        self.step = state["step"]
        self.policy.load_state_dict(state["policy"])
        self._choices.load_state_dict(state.get("choices", []))

    # -- around a forward pass -----------------------------------------------------------

    def __enter__(self) -> Tape:
        self._depth += 1
        if self._depth > 1 or self._pauses or not torch.is_grad_enabled():
            return self
        if graph.under_transform():
            self._depth -= 1
            raise UnsupportedError(
                "a model with a tape was called under torch.func (grad, vmap, …), which has no "
                "saved tensors to take over; call tape.detach() first, or use loss.backward()"
            )
        self._last = graph.newest()  # what was computed before is not ours
        self.order = 0
        self._counts.clear()
        self._learn_names()
        try:
            self._begin_step()
        except BaseException:  # a policy may refuse: a budget that cannot be reached, say
            self._depth -= 1
            raise
        self._where.start()
        self._watch = Watch(self._seen)
        self._watch.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0 and self._watch is not None:
            watch, self._watch = self._watch, None
            watch.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._where.stop()
            self.end_forward()

    def _begin_step(self) -> None:
        self.step += 1
        self.recent.clear()
        self._ran.clear()
        self.policy.begin(self.step)
        self.records.begin(self.step)
        for log in self.logs:
            log.begin(self.step)

    def end_forward(self) -> None:
        """Everything is kept that backward will ask for."""
        stored, plain = self.ledger.stored, self.ledger.plain
        self.last_forward = stored, plain
        kept = getattr(self.policy, "kept", None)  # for policies that plan by size
        if kept is not None:
            kept(self.records, stored)
        for log in self.logs:
            log.end_forward(self.records, stored=stored, plain=plain)

    @property
    def is_active(self) -> bool:
        """Whether forward passes keep their tensors here: not paused, not detached."""
        return not self._pauses and not self._detached

    def begin_graph(self, number: int) -> None:
        """A compiled forward graph starts: a step, unless it is a further part of one."""
        if self._watch is None and (number in self._ran or not self._ran):
            self._begin_step()
        self._ran.add(number)

    def begin_graphs_backward(self) -> None:
        """A compiled backward graph starts: the next forward graph begins a step.

        Also where it was compiled anew, and is not one of those that ran.
        """
        self._ran.clear()

    def begin_call(self, frame: FrameType) -> None:
        """Enter for a call of the model, whose hooks run in `frame`.

        An interrupt ends a call without running its hooks; the next one clears up after it.
        """
        if self._calls and not _is_running(self._calls[-1], frame):
            self._abandon()
        self.__enter__()
        self._calls.append(frame)

    def end_call(self, result: Any) -> None:
        """Leave after a call of the model, which gave `result` (None if it raised)."""
        if not self._calls:
            return  # it was refused
        self._calls.pop()
        if self._watch is not None and self._depth == 1 and torch.is_grad_enabled():
            # An op of the user's own is seen with the op that follows it: here, none does.
            self._seen([t for t in tensors_in(result) if t.grad_fn is not None])
        self.__exit__()

    def _abandon(self) -> None:
        self._calls.clear()
        self._depth = 0
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.abandon()
            self._where.stop()

    def _learn_names(self) -> None:
        if self.model is None:
            return
        self._names = {id(p): name for name, p in self.model.named_parameters()}
        self._state = {id(b) for b in self.model.buffers()}

    # -- what an op saved ----------------------------------------------------------------

    def _seen(self, outputs: list[Tensor]) -> None:
        nodes, self._last = graph.new_nodes(outputs, self._last)
        if not nodes or graph.foreign_hooks_active():
            return
        with torch.no_grad():
            for node in nodes:
                self._take(node)

    def _take(self, node: Any) -> None:
        """Take over everything that a node saved."""
        op = graph.op_name(node)
        self.order += 1
        probed: list[tuple[str, Source, Site]] = []
        for role, raw in graph.saved(node):
            if graph.has_hooks(raw):
                continue
            try:
                t = graph.saved_tensor(node, role)
            except RuntimeError:
                continue  # changed in place since: autograd will say so in backward
            if t is None or not self._is_ours(t, role):
                continue
            site = self._site(op, role)
            storage = self._storages.of(t)
            source = self._keep(node, site, t, storage)
            handle = Handle(source, site, t, storage)
            raw.register_hooks(_Give(handle), unpack)
            if any(slot.observed for slot in source.slots()):
                probed.append((role, source, site))
        if probed:
            node.register_hook(
                Probe(
                    probed,
                    order=self.order,
                    name_of=self._name_of,
                    report=self.report,
                    seed=self.step,
                )
            )

    def _site(self, op: str, role: str) -> Site:
        place = (self._where.now, op, role)
        index = self._counts.get(place, 0)
        self._counts[place] = index + 1
        return Site(*place, index)

    def _is_ours(self, t: Tensor, role: str) -> bool:
        """Whether a saved tensor is an activation: not a parameter, a buffer, or a stranger."""
        if type(t) is not Tensor or t.layout != torch.strided or t.is_meta:
            return False
        if id(t) in self._state or role.startswith("running_") or t.numel() == 0:
            return False
        return graph.parameter_behind(t) is None and not (t.requires_grad and t.is_leaf)

    def _name_of(self, parameter: Tensor) -> str:
        return self._names.get(id(parameter), "")

    def report(self, effect: Effect) -> None:
        self.policy.observe(effect)
        for listener in self.listeners:
            listener(effect)

    # -- how a tensor is kept ------------------------------------------------------------

    def _keep(self, node: Any, site: Site, t: Tensor, storage: SavedStorage) -> Source:
        rule = find(site.op, site.role) or EXACT
        if t.numel() * t.element_size() < SMALL:
            return self._as_it_is(site, t, storage, "small")
        if not t.is_floating_point():
            rule = _for_integers(rule, t)
        need = rule.need
        if need is Need.SHAPE:
            return self._noted(Shape(t), site, t, 0, "only its shape is needed")
        if need is Need.SIGN:
            return self._sides(node, site, t, storage, rule)
        if need is Need.WINDOW:
            return self._window(node, site, t, storage)
        if need is Need.INDEX:
            return self._integers(site, t)
        if need is Need.EXACT:
            why = "needs every bit" if known(site.op) else f"no rule for {site.op}"
            return self._as_it_is(site, t, storage, why)
        if need is not Need.VALUE and not t.requires_grad:
            return self._constant(site, t, storage)
        if t.dtype not in FLOATS:
            return self._as_it_is(site, t, storage, f"{t.dtype} values")
        return self._values(site, t, storage, channels_of(node, site.op, site.role, t))

    def _integers(self, site: Site, t: Tensor) -> Source:
        once = store.unexpanded(t)
        if once is not None:
            return _expanded(self._integers(site, once), t)
        source = Integers(t, self.ledger)
        return self._noted(source, site, t, source.nbytes, "narrowed")

    def _values(
        self, site: Site, t: Tensor, storage: SavedStorage, channels: Channels | None = None
    ) -> Source:
        once = store.unexpanded(t)
        if once is not None:
            if once.numel() * once.element_size() < SMALL:
                return self._as_it_is(site, t, storage, "small")
            return _expanded(self._values(site, once, storage), t)
        geometry = Geometry.of(t)
        found = store.find_values(storage, geometry)
        sight = Sight(
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
            return found
        if treatment.derive:
            exact = isinstance(treatment.bound, Lossless)
            deriver = Deriver(arithmetic=not exact, recompute=treatment.recompute)
            derived = deriver.value_of(t.grad_fn, tuple(t.shape))
            if derived is not None:
                if not isinstance(derived, Derived):
                    derived = Derived(derived, lambda x: x, "copy")
                self.records.share(site, next(derived.slots()).site, t, derived.how)
                return derived
        if treatment.bound is None or storage.is_held():
            why = treatment.why if treatment.bound is None else "kept anyway"
            return self._as_it_is(site, t, storage, why)
        slot = self.pack(site, t, treatment, channels=channels)
        for see in self.packed:
            see(slot, t)
        slot.observed = not slot.is_exact and (treatment.observe or treatment.check)
        if treatment.check:
            slot.check = t.detach()
            slot.checked = storage.hold()
        store.remember(storage, geometry, slot)
        sides = store.find_sides(storage, geometry)
        if sides is not None and slot.exact_zeros:
            self.records.follow(sides.site, slot.site)
            sides.follow(Whole(slot))
        return self._noted(Whole(slot), site, t, slot.nbytes, treatment.why or slot.why, slot)

    def pack(
        self, site: Site, t: Tensor, treatment: Treatment, *, channels: Channels | None = None
    ) -> Slot:
        assert treatment.bound is not None
        exact = isinstance(treatment.bound, Lossless)
        codec = treatment.codec
        number = treatment.bound.number
        if codec == "auto":
            codec = self._choices.get(site, self.step, number) or "auto"
        zeros = codec == "auto" or by_name(codec).keeps_zeros
        if exact or not treatment.normalise:
            channels = None
        options = {
            "codec": codec,
            "prefer": treatment.prefer,
            "dither": treatment.dither and not exact and zeros,
            "keep_nonzero": not exact and zeros,
            "seed": (self.step << 20) + self.order if not exact else 0,
        }

        def make() -> Packed:
            values = t if channels is None else channels.normalise(t)
            return compress(values, treatment.bound, **options)  # type: ignore[arg-type]

        lane = None if self._lanes is None else self._lanes.of(t.device)
        packed = make() if lane is None else lane.pack(t, make, offload=treatment.offload)
        slot = Slot.packed(
            site, packed, self.ledger, recent=self.recent, offload=treatment.offload
        )
        if codec == "auto":
            self._choices.put(site, self.step, number, slot.codec)
        slot.channels = channels
        slot.exact_zeros = zeros and channels is None
        return slot

    def _as_it_is(self, site: Site, t: Tensor, storage: SavedStorage, why: str) -> Source:
        size = t.numel() * t.element_size()
        if size < SMALL <= storage.nbytes and not storage.is_held():
            # A small slice must not keep alive all that it was cut from.
            t, held = t.clone(), Held(self.ledger, size)
            slot = Slot.exact(site, t, held, recent=self.recent, why=why)
            return self._noted(Whole(slot), site, t, slot.nbytes, why, slot)
        slot = Slot.exact(site, t, storage.hold(), recent=self.recent, why=why)
        store.remember(storage, Geometry.of(t), slot)
        return self._noted(Whole(slot), site, t, slot.nbytes, why, slot)

    def _constant(self, site: Site, t: Tensor, storage: SavedStorage) -> Source:
        scale = is_two_valued(t) if store.unexpanded(t) is None else None
        if scale is None:
            return self._as_it_is(site, t, storage, "a constant of the graph")
        source = TwoValued(t, scale, self.ledger)
        return self._noted(source, site, t, source.nbytes, "two values: one bit each")

    def _sides(
        self, node: Any, site: Site, t: Tensor, storage: SavedStorage, rule: Rule
    ) -> Source:
        assert rule.sides is not None
        mask = rule.split(t, node) if rule.split is not None else None
        sides = Sides(site, t, rule.sides(node), self.ledger, mask=mask)
        if rule.zero_tells:
            store.remember(storage, Geometry.of(t), sides)
        return self._noted(sides, site, t, sides.nbytes, "only its sign is needed")

    def _window(self, node: Any, site: Site, t: Tensor, storage: SavedStorage) -> Source:
        pooled = graph.saved_tensor(node, "self")
        places = None if pooled is None else windows.to_places(t, node, pooled.shape)
        if places is None:
            source = Integers(t, self.ledger)
        else:
            source = Integers(places[0], self.ledger, dtype=t.dtype, restore=places[1])
        return self._noted(source, site, t, source.nbytes, "place in the window")

    def _noted(
        self,
        source: Source,
        site: Site,
        t: Tensor,
        stored: int,
        why: str,
        slot: Slot | None = None,
    ) -> Source:
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


class _Give:
    """A pack hook that hands over a handle made before."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __call__(self, _t: Tensor) -> Handle:
        return self._handle


def unpack(handle: Handle) -> Tensor:
    """The unpack hook: what a handle stands for, checked."""
    return handle.get()


def _is_running(frame: FrameType, here: FrameType | None) -> bool:
    while here is not None and here is not frame:
        here = here.f_back
    return here is frame


def _expanded(source: Source, t: Tensor) -> Source:
    """What `source` keeps once, repeated as in `t`."""
    shape = tuple(t.shape)
    return Derived(source, lambda x: x.expand(shape), source.how)


def _for_integers(rule: Rule, t: Tensor) -> Rule:
    """Integers and truth values are never lossy."""
    if rule.need in (Need.SHAPE, Need.WINDOW, Need.EXACT):
        return rule
    return INDEX if t.dtype in BOOLS | INTEGERS else EXACT
