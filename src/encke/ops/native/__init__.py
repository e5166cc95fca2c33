"""C++ kernels for CPU tensors: AVX2 where the processor has it, portable elsewhere.

The module `_native` knows no torch: it is handed addresses and sizes. A package that
was built without a compiler has no `_native`; then `load` says so.
"""

from __future__ import annotations

import importlib
import math
from types import ModuleType

import torch
from torch import Tensor

from encke.errors import BackendError, CorruptStreamError
from encke.memory import pool
from encke.ops.quantiser import Quantiser

#: Results from this size on are freshly mapped by the system, page by page.
_LARGE = 4 << 20

_DTYPES: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.float64: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
    torch.bool: 5,
    torch.uint8: 6,
    torch.int8: 7,
    torch.int16: 8,
    torch.int32: 9,
    torch.int64: 10,
}
_PATTERNS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Native:
    """The native kernels; see `encke.ops.backend.Backend`."""

    name = "native"
    on_host: frozenset[str] = frozenset()

    def __init__(self, module: ModuleType) -> None:
        self._m = module

    def fixed_encode(self, x: Tensor, q: Quantiser) -> Tensor:
        return self._taken(self._m.fixed_encode(x.data_ptr(), x.numel(), _DTYPES[x.dtype], *q))

    def fixed_decode(
        self, payload: Tensor, count: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        _sized(payload, 32 + 4 * -(-count // 8192))
        if out is None:
            out = self._room(count, dtype)
        return self._checked(
            self._m.fixed_decode(
                payload.data_ptr(), payload.numel(), out.data_ptr(), count, _DTYPES[dtype]
            ),
            out,
        )

    def entropy_encode(self, x: Tensor, q: Quantiser) -> Tensor:
        return self._taken(
            self._m.entropy_encode(x.data_ptr(), tuple(x.shape), _DTYPES[x.dtype], *q)
        )

    def entropy_decode(
        self, payload: Tensor, count: int, dtype: torch.dtype, out: Tensor | None = None
    ) -> Tensor:
        _sized(payload, 32 + 8 * -(-count // 65536))
        if out is None:
            out = self._room(count, dtype)
        return self._checked(
            self._m.entropy_decode(
                payload.data_ptr(), payload.numel(), out.data_ptr(), count, _DTYPES[dtype]
            ),
            out,
        )

    def predict_encode(
        self,
        x: Tensor,
        shape: tuple[int, ...],
        q: Quantiser,
        plan: tuple[int, ...],
        valid: Tensor | None = None,
    ) -> Tensor:
        holes = 0 if valid is None else valid.data_ptr()
        return self._taken(
            self._m.predict_encode(x.data_ptr(), holes, shape, _DTYPES[x.dtype], *q, plan)
        )

    def predict_decode(
        self,
        payload: Tensor,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        out: Tensor | None = None,
        valid: Tensor | None = None,
    ) -> Tensor:
        _sized(payload, 32 + 8 * -(-math.prod(shape) // 65536))
        if out is None:
            out = self._room(shape, dtype)
        holes = 0 if valid is None else valid.data_ptr()
        return self._checked(
            self._m.predict_decode(
                payload.data_ptr(),
                payload.numel(),
                holes,
                out.data_ptr(),
                shape,
                _DTYPES[dtype],
            ),
            out,
        )

    def bitmap_encode(
        self, x: Tensor, shape: tuple[int, ...], domain: Tensor | None = None
    ) -> Tensor:
        within = 0 if domain is None else domain.data_ptr()
        return self._taken(self._m.bitmap_encode(x.data_ptr(), within, shape))

    def bitmap_decode(
        self, payload: Tensor, shape: tuple[int, ...], domain: Tensor | None = None
    ) -> Tensor:
        out = self._room(shape, torch.bool)
        within = 0 if domain is None else domain.data_ptr()
        return self._checked(
            self._m.bitmap_decode(
                payload.data_ptr(), payload.numel(), within, shape, out.data_ptr()
            ),
            out,
        )

    def count_not_finite(self, x: Tensor, samples: int) -> int:
        stride = max(1, x.numel() // samples)
        found: int = self._m.holes_sample(x.data_ptr(), x.numel(), _DTYPES[x.dtype], stride)
        return found

    def mark_values(self, x: Tensor, fill: tuple[float, ...]) -> tuple[Tensor, int]:
        valid = self._room(tuple(x.shape), torch.bool)
        kind, numbers = _DTYPES[x.dtype], torch.tensor(fill, dtype=x.dtype).tolist()
        many = self._m.holes_mark(x.data_ptr(), x.numel(), kind, numbers, valid.data_ptr())
        return valid, many

    def shared_pattern(self, x: Tensor, valid: Tensor) -> int | None:
        bits = torch.empty(1, dtype=_PATTERNS[x.element_size()])
        kind = _DTYPES[x.dtype]
        shared = self._m.holes_pattern(
            x.data_ptr(), valid.data_ptr(), x.numel(), kind, bits.data_ptr()
        )
        return int(bits) if shared else None

    def put_pattern(self, y: Tensor, where: Tensor, bits: int) -> int:
        if not y.is_contiguous():
            from encke.ops.reference import holes

            return holes.put_pattern(y, where, bits)
        pattern = bits & 0xFFFF_FFFF_FFFF_FFFF
        many: int = self._m.holes_put(
            y.data_ptr(), where.data_ptr(), y.numel(), _DTYPES[y.dtype], pattern
        )
        return many

    def group_encode(self, x: Tensor, bits: int, stochastic: bool, seed: int) -> Tensor:
        return self._taken(
            self._m.group_encode(
                x.data_ptr(), x.numel(), _DTYPES[x.dtype], bits, stochastic, seed
            )
        )

    def group_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        _sized(payload, count // 8)
        out = self._room(count, dtype)
        return self._checked(
            self._m.group_decode(
                payload.data_ptr(), payload.numel(), out.data_ptr(), count, _DTYPES[dtype]
            ),
            out,
        )

    def mask_encode(self, x: Tensor) -> Tensor:
        return self._taken(self._m.mask_encode(x.data_ptr(), x.numel()))

    def mask_decode(self, payload: Tensor, count: int) -> Tensor:
        _sized(payload, count // 8)
        out = self._room(count, torch.bool)
        return self._checked(
            self._m.mask_decode(payload.data_ptr(), payload.numel(), out.data_ptr(), count), out
        )

    def positive_encode(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return self.mask_encode(torch.le(x, 0).logical_not_())
        return self._taken(self._m.positive_encode(x.data_ptr(), x.numel()))

    def positive_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        if dtype != torch.float32:
            return self.mask_decode(payload, count).to(dtype)
        _sized(payload, count // 8)
        out = self._room(count, dtype)
        status = self._m.positive_decode(
            payload.data_ptr(), payload.numel(), out.data_ptr(), count
        )
        return self._checked(status, out)

    def affine_where(
        self, x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int
    ) -> Tensor:
        if x.dtype != torch.float32 or not x.is_contiguous():
            from encke.ops.reference import sides

            return sides.affine_where(x, payload, gain, shift, inner)
        out = self._room(tuple(x.shape), x.dtype)
        gain, shift = gain.float().contiguous(), shift.float().contiguous()
        status = self._m.affine_where(
            x.data_ptr(),
            payload.data_ptr(),
            payload.numel(),
            gain.data_ptr(),
            shift.data_ptr(),
            gain.numel(),
            inner,
            out.data_ptr(),
            x.numel(),
        )
        return self._checked(status, out)

    def gated_close(
        self, x: Tensor, payload: Tensor, gain: Tensor, shift: Tensor, inner: int
    ) -> tuple[Tensor, Tensor]:
        if x.dtype != torch.float32 or not x.is_contiguous():
            from encke.ops.reference import gated

            return gated.close(x, payload, gain, shift, inner)
        bits = payload.data_ptr(), payload.numel()
        chosen = self._m.gated_count(*bits, x.numel())
        values = self._room(max(0, chosen), x.dtype)
        gain, shift = gain.float().contiguous(), shift.float().contiguous()
        sums = torch.empty(3, gain.numel(), dtype=torch.float64)
        status = self._m.gated_close(
            x.data_ptr(),
            *bits,
            gain.data_ptr(),
            shift.data_ptr(),
            gain.numel(),
            inner,
            x.numel(),
            values.data_ptr(),
            chosen,
            sums.data_ptr(),
        )
        return self._checked(status, values), sums

    def gated_open(
        self,
        values: Tensor,
        payload: Tensor,
        scales: tuple[Tensor, Tensor, Tensor],
        inner: int,
        shape: tuple[int, ...],
    ) -> Tensor:
        if values.dtype != torch.float32 or not values.is_contiguous():
            from encke.ops.reference import gated

            return gated.open_(values, payload, scales, inner, shape)
        out = self._room(shape, values.dtype)
        gain, shift, other = (s.float().contiguous() for s in scales)
        status = self._m.gated_open(
            values.data_ptr(),
            values.numel(),
            payload.data_ptr(),
            payload.numel(),
            gain.data_ptr(),
            shift.data_ptr(),
            other.data_ptr(),
            gain.numel(),
            inner,
            out.data_ptr(),
            out.numel(),
        )
        return self._checked(status, out)

    def gated_add(
        self,
        to: Tensor,
        values: Tensor,
        payload: Tensor,
        scales: tuple[Tensor, Tensor],
        inner: int,
    ) -> None:
        if {to.dtype, values.dtype} != {torch.float32} or not to.is_contiguous():
            from encke.ops.reference import gated

            gated.add(to, values, payload, scales, inner)
            return
        gain, shift = (s.float().contiguous() for s in scales)
        status = self._m.gated_add(
            values.data_ptr(),
            values.numel(),
            payload.data_ptr(),
            payload.numel(),
            gain.data_ptr(),
            shift.data_ptr(),
            gain.numel(),
            inner,
            to.data_ptr(),
            to.numel(),
        )
        self._checked(status, to)

    def norm_backward(
        self, dy: Tensor, x: Tensor, mean: Tensor, spread: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        channels = x.shape[1]
        gradients = torch.empty(2, channels, dtype=torch.float32)
        outer = x.shape[0]
        status = self._m.norm_backward(
            dy.data_ptr(),
            x.data_ptr(),
            mean.data_ptr(),
            spread.data_ptr(),
            0 if weight is None else weight.data_ptr(),
            outer,
            channels,
            x.numel() // (outer * channels),
            x.data_ptr(),
            gradients[0].data_ptr(),
            gradients[1].data_ptr(),
        )
        if status != 0:
            self._fail(status)
        return gradients[0], gradients[1]

    def index_encode(self, x: Tensor) -> Tensor:
        return self._taken(self._m.index_encode(x.data_ptr(), x.numel(), _DTYPES[x.dtype]))

    def index_decode(self, payload: Tensor, count: int, dtype: torch.dtype) -> Tensor:
        _sized(payload, 9 * -(-count // 8192))
        out = self._room(count, dtype)
        return self._checked(
            self._m.index_decode(
                payload.data_ptr(), payload.numel(), out.data_ptr(), count, _DTYPES[dtype]
            ),
            out,
        )

    def _room(self, shape: int | tuple[int, ...], dtype: torch.dtype) -> Tensor:
        try:
            out = torch.empty(shape, dtype=dtype)
        except RuntimeError as error:
            raise MemoryError(f"no memory for the decoded tensor: {error}") from None
        if out.nbytes >= _LARGE and not pool().is_installed:
            self._m.expect(out.data_ptr(), out.nbytes)
        return out

    def _taken(self, size: int) -> Tensor:
        if size < 0:
            self._fail(size)
        pool().expect_long_life()
        payload = torch.empty(size, dtype=torch.uint8)
        self._m.take(payload.data_ptr())
        return payload

    def _checked(self, status: int, out: Tensor) -> Tensor:
        if status != 0:
            self._fail(status)
        return out

    def _fail(self, status: int) -> None:
        if status == self._m.CORRUPT:
            raise CorruptStreamError("payload breaks the rules of its codec")
        if status == self._m.NO_MEMORY:
            raise MemoryError("no memory for the codec's scratch space")
        raise BackendError(f"native kernel refused its arguments (status {status})")


def _sized(payload: Tensor, least: int) -> None:
    """Refuse, before anything is allocated, a payload too short for what it claims."""
    if payload.numel() < least:
        raise CorruptStreamError(
            f"payload has {payload.numel()} bytes, its claimed size needs at least {least}"
        )


def _module() -> ModuleType:
    try:
        return importlib.import_module("encke.ops.native._native")
    except ImportError as error:
        raise BackendError(
            f"the native module is not there ({error}); the reference backend does the work, "
            "slower. Reinstall Encke where a C++20 compiler is found to have it"
        ) from None


def load() -> Native:
    """The native backend, or `BackendError` with the reason why there is none."""
    return Native(_module())


def isa() -> str:
    """The instruction set in use: 'avx2' or 'portable'."""
    name: str = _module().isa()
    return name


def isa_available() -> list[str]:
    """The instruction sets that this build and this processor both have."""
    module = _module()
    current = module.isa()
    found = [name for name in ("avx2", "portable") if module.use(name)]
    module.use(current)
    return found


def use_isa(name: str) -> None:
    """Switch to another instruction set, for tests and comparisons."""
    if not _module().use(name):
        raise BackendError(f"instruction set is {name!r}, available are {isa_available()}")
