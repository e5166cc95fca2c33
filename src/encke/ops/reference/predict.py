"""`predict` in plain torch (docs/format.md, section 8): parameters, directory, data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from encke.errors import CorruptStreamError, UnsupportedError
from encke.ops.quantiser import DITHER, PLAIN, Quantiser
from encke.ops.reference import (
    digits,
    predict_interpolation,
    predict_lorenzo,
    predict_plan,
    predict_plan_holes,
    predict_regression,
    predict_sparse,
    rans,
)
from encke.ops.reference.predict_coding import Coding, run_seed, runs_of, runs_with_holes
from encke.ops.reference.predict_payload import (
    RUN_SPARSE,
    RUN_STAGE,
    RUN_ZERO,
    Reader,
    RunEntry,
    varint,
)
from encke.ops.reference.predict_plan import (
    INTERPOLATION,
    LORENZO,
    REGRESSION,
    VERBATIM,
    Extents,
    Plan,
)
from encke.ops.reference.quantise import (
    PARAMETER_BYTES,
    PATTERN,
    arithmetic,
    read_parameters,
    write_parameters,
)

_MODELS = {
    LORENZO: predict_lorenzo,
    REGRESSION: predict_regression,
    INTERPOLATION: predict_interpolation,
}
_KEEP_NONZERO, _ZERO_MAP, _HOLES = 1, 2, 4


def encode(
    x: Tensor,
    shape: tuple[int, ...],
    q: Quantiser,
    plan: tuple[int, ...],
    valid: Tensor | None = None,
) -> Tensor:
    """The payload of `x`. `q.limit0` is the error that every value is checked against.

    `plan` is (1 to keep zeros and non-zeros apart, else 0), after which mode and bytes of
    a plan may follow; without them one is chosen. Where `valid` is false there is no value.
    """
    if q.kind not in (PLAIN, DITHER):
        raise UnsupportedError(f"quantiser kind is {q.kind}, predict takes 0 and 2")
    values = x.reshape(-1)
    if values.numel() == 0:
        return _verbatim(values, q)
    extents = predict_plan.extents_of(shape)
    holes = valid is not None
    flags, given = _read_plan(plan, extents, holes=holes)
    if valid is not None:
        valid = valid.reshape(-1)
        values = torch.where(valid, values, _nan(x.dtype, x.device))
    if q.step0 == 0.0 or (given and given.mode == VERBATIM):
        return _verbatim(values, q)
    real = arithmetic(x.dtype)
    step = torch.tensor(q.step0, dtype=real, device=x.device)
    choose = predict_plan_holes.choose if holes else predict_plan.choose
    chosen = given or choose(values.to(real), extents, step)
    if given is None and q.kind == DITHER:
        chosen = chosen.evenly()
    model = _MODELS[chosen.mode]
    c = Coding(chosen, extents, [], q.step0, q.kind == DITHER, q.seed, real, x.device, valid)
    c, order, runs = _with_runs(c)
    codes, rebuilt = model.encode(c, values.to(real))
    if order is not None:
        codes = codes[order]
    keep = bool(flags & _KEEP_NONZERO)
    decoded = _finish(rebuilt, x.dtype, keep)
    error = (decoded.to(torch.float64) - values.to(torch.float64)).abs()
    wrong = ~(error <= q.limit0)
    zeros = values == 0
    kind = q.kind
    if valid is not None:
        wrong &= valid
        zeros, kind, flags = zeros[valid], PLAIN, flags | _HOLES
    jobs = [(codes[first : first + n], kind, r) for r, (first, n) in enumerate(runs)]
    if keep and bool(zeros.any()):
        flags |= _ZERO_MAP
        wrong &= values != 0
        jobs.append((zeros.to(torch.int64), PLAIN, -1))
    directory, data = bytearray(), []
    for part, kind, run in jobs:
        seed = run_seed(q.seed, run) if run >= 0 else 0
        entry, body = _encode_run(part, kind, seed)
        directory += entry
        data.append(body)
    outliers = torch.nonzero(wrong).flatten()
    gaps = torch.diff(outliers, prepend=outliers.new_full((1,), -1)) - 1
    positions = b"".join(varint(gap) for gap in gaps.tolist())
    head = write_parameters(q._replace(step1=0.0))
    head += bytes([chosen.mode, flags, chosen.share, len(chosen.data)]) + chosen.data
    head += varint(outliers.numel()) + varint(len(positions)) + bytes(directory) + positions
    kept = values[outliers].contiguous().view(torch.uint8)
    payload = torch.cat([_bytes(head, x.device), kept, *(d.to(x.device) for d in data)])
    payload = _padded(payload, values.numel())
    whole = PARAMETER_BYTES + 4 + values.numel() * x.element_size()
    return _verbatim(values, q) if payload.numel() > whole else payload


def decode(
    payload: Tensor, shape: tuple[int, ...], dtype: torch.dtype, valid: Tensor | None = None
) -> Tensor:
    """The tensor of a payload, or `CorruptStreamError`."""
    extents = predict_plan.extents_of(shape)
    count = math.prod(shape)
    if payload.numel() < _least(count):
        raise CorruptStreamError(
            f"payload has {payload.numel()} bytes, {count} values take at least {_least(count)}"
        )
    q, own = read_parameters(payload, dtype)
    reader = Reader(payload[PARAMETER_BYTES:].cpu().numpy().tobytes())
    mode, flags, share, size = reader.take(4)
    plan = Plan(mode, reader.take(size), share)
    try:
        plan.check(extents, holes=valid is not None)
    except UnsupportedError as error:
        raise CorruptStreamError(f"payload has an impossible plan: {error}") from None
    item = torch.empty(0, dtype=dtype).element_size()
    zeros = flags & (_KEEP_NONZERO | _ZERO_MAP)
    if flags > zeros | _HOLES or zeros == _ZERO_MAP or any(own):
        raise CorruptStreamError(f"payload has flags {flags} and parameter bytes {own!r}")
    if mode == VERBATIM:
        raw = reader.take(count * item)
        reader.only_zeros()
        return _values(raw, dtype).to(payload.device).view(shape)
    if q.kind not in (PLAIN, DITHER) or q.step0 == 0.0:
        raise CorruptStreamError(f"payload has quantiser kind {q.kind} and step {q.step0}")
    if bool(flags & _HOLES) != (valid is not None):
        raise CorruptStreamError(f"payload has flags {flags}, holes are known from elsewhere")
    real = arithmetic(dtype)
    device = payload.device
    mask = None if valid is None else valid.reshape(-1)
    c = Coding(plan, extents, [], q.step0, q.kind == DITHER, q.seed, real, device, mask)
    c, order, runs = _with_runs(c)
    outliers, length = reader.varint(), reader.varint()
    if outliers > min(count, length):
        raise CorruptStreamError(f"payload has {outliers} outliers in {length} bytes")
    coded = count if mask is None else int(torch.count_nonzero(mask))
    sizes = [size for _, size in runs] + ([coded] if flags & _ZERO_MAP else [])
    entries = [reader.entry() for _ in sizes]
    places = Reader(reader.take(length))
    kept = _values(reader.take(outliers * item), dtype)
    parts = []
    for run, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        own_kind, seed = (q.kind, run_seed(q.seed, run)) if run < len(runs) else (PLAIN, 0)
        own_kind = PLAIN if order is not None else own_kind
        parts.append(_decode_run(entry, reader.take(entry.size), size, own_kind, seed))
    reader.only_zeros()
    codes = torch.cat(parts[: len(runs)]).to(device)
    if order is not None:
        codes = torch.zeros(order.numel(), dtype=codes.dtype, device=device).masked_scatter(
            order, codes
        )
    out = _finish(_MODELS[mode].decode(c, codes), dtype, bool(flags & _KEEP_NONZERO))
    if flags & _ZERO_MAP:
        is_zero = (parts[-1] != 0).to(device)
        if mask is not None:
            is_zero = torch.zeros_like(mask).masked_scatter(mask, is_zero)
        out[is_zero] = 0.0
    position, at = -1, []
    for _ in range(outliers):
        position += 1 + places.varint()
        if position >= count:
            raise CorruptStreamError(f"payload has an outlier at {position} of {count} values")
        at.append(position)
    places.done()
    out[torch.tensor(at, dtype=torch.int64, device=device)] = kept.to(device)
    return out.view(shape)


def _with_runs(c: Coding) -> tuple[Coding, Tensor | None, list[tuple[int, int]]]:
    """`c` with its runs; where holes leave something out, which positions, in the order of
    codes, have one; and the runs of those."""
    model = _MODELS[c.plan.mode]
    pieces = model.pieces(c.plan, c.extents)
    if c.valid is None:
        runs = runs_of(pieces, c.plan.share)
        return c._replace(runs=runs), None, runs
    masks = model.order(c, c.valid)
    coded = [int(torch.count_nonzero(mask)) for mask in masks]
    runs, codes = runs_with_holes(pieces, coded, c.plan.share)
    return c._replace(runs=runs), torch.cat(masks), codes


def _nan(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(float("nan"), dtype=dtype, device=device)


def _read_plan(
    plan: tuple[int, ...], extents: Extents, *, holes: bool
) -> tuple[int, Plan | None]:
    if not plan or plan[0] not in (0, _KEEP_NONZERO):
        raise UnsupportedError(f"plan is {plan}, its first number must be 0 or 1")
    if len(plan) == 1:
        return plan[0], None
    if any(not 0 <= number <= 255 for number in plan[2:]):
        raise UnsupportedError(f"plan is {plan}, its numbers must fit a byte")
    given = Plan(plan[1], bytes(plan[2:]))
    given.check(extents, holes=holes)
    return plan[0], given


def _least(count: int) -> int:
    """A short payload cannot claim a huge tensor."""
    return PARAMETER_BYTES + 8 * -(-count // 65536)


def _finish(y: Tensor, dtype: torch.dtype, keep_nonzero: bool) -> Tensor:
    values = y.to(dtype)
    if keep_nonzero:
        smallest = torch.ones_like(values, dtype=PATTERN[dtype]).view(dtype)
        values = torch.where(values == 0, smallest, values)
    return values


def _verbatim(values: Tensor, q: Quantiser) -> Tensor:
    head = write_parameters(q._replace(step0=0.0, step1=0.0)) + bytes([VERBATIM, 0, 0, 0])
    raw = values.contiguous().view(torch.uint8)
    return _padded(torch.cat([_bytes(head, values.device), raw]), values.numel())


def _padded(payload: Tensor, count: int) -> Tensor:
    missing = _least(count) - payload.numel()
    return torch.cat([payload, payload.new_zeros(missing)]) if missing > 0 else payload


def _values(raw: bytes, dtype: torch.dtype) -> Tensor:
    if not raw:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype)


def _bytes(data: bytes, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def _encode_run(codes: Tensor, kind: int, seed: int) -> tuple[bytes, Tensor]:
    """A run's entry in the directory and its data."""
    nonzero = int(torch.count_nonzero(codes))
    if nonzero == 0:
        return bytes([RUN_ZERO]), torch.empty(0, dtype=torch.uint8)
    if nonzero <= 1024 or nonzero <= codes.numel() // 64:
        data = predict_sparse.encode(codes.to(torch.int32).cpu())
        entry = bytes([RUN_SPARSE]) + varint(nonzero) + varint(len(data))
        return entry, torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8)[
            : len(data)
        ]
    own, body = rans.encode_codes(codes.to(torch.int32), kind=kind, seed=seed)
    return bytes([RUN_STAGE]) + own + varint(body.numel()), body


def _decode_run(entry: RunEntry, data: bytes, count: int, kind: int, seed: int) -> Tensor:
    if entry.coder == RUN_ZERO:
        return torch.zeros(count, dtype=torch.int64)
    if entry.coder == RUN_SPARSE:
        if entry.nonzero > count:
            raise CorruptStreamError(f"payload has {entry.nonzero} codes in a run of {count}")
        return predict_sparse.decode(data, entry.nonzero, count).to(torch.int64)
    body = torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8)[: len(data)]
    codes = rans.decode_codes(entry.own, body, count, kind=kind, seed=seed).to(torch.int64)
    is_open = (codes == digits.VERBATIM) | (codes == digits.ZERO)
    return torch.where(is_open, 0, codes)
