"""A compressed tensor: in memory as it came from its codec, or as a stream of bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from encke.bound import Bound
from encke.bound.kinds import from_code
from encke.codec import holes, layout, registry, stream, traced
from encke.codec.contract import Codec
from encke.errors import BoundError, CorruptStreamError, UnsupportedError
from encke.ops.backend import Backend
from encke.ops.select import select


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Packed:
    """What `encke.compress` returns.

    promised   the largest error this tensor was compressed with: absolute, or relative
               to each value for a pointwise bound
    why        in words, how the codec was chosen
    holes      whether some positions have no value and are coded apart
    """

    codec: str
    bound: Bound
    promised: float
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]
    payload: Tensor
    why: str = ""
    holes: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that the compressed tensor takes, its header included."""
        return self.payload.numel() + stream.header_bytes(len(self.shape))

    @property
    def plain_nbytes(self) -> int:
        """Bytes that the tensor takes as it is."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def ratio(self) -> float:
        """How many times smaller the tensor has become."""
        return self.plain_nbytes / self.nbytes

    @property
    def device(self) -> torch.device:
        return self.payload.device

    def decompress(self, *, out: Tensor | None = None, backend: str | None = None) -> Tensor:
        """The tensor again: shape, dtype, device and strides as they were.

        `out`, a tensor of that shape, dtype and device, is filled and returned instead of
        fresh memory.
        """
        inner = tuple(self.shape[d] for d in self.order)
        if torch.compiler.is_compiling():
            values = layout.from_memory(
                traced.decode(self.payload, inner, self.dtype, self.codec), self.order
            )
            return values if out is None else out.copy_(values)
        codec = registry.by_name(self.codec)
        kernels = select(self.payload.device, backend)
        if out is None:
            return layout.from_memory(self._decode(codec, inner, kernels), self.order)
        return self._into(out, codec, inner, kernels)

    def _into(
        self, out: Tensor, codec: Codec, inner: tuple[int, ...], kernels: Backend
    ) -> Tensor:
        fits = (tuple(out.shape), out.dtype, out.device) == (
            self.shape,
            self.dtype,
            self.device,
        )
        if not fits:
            raise UnsupportedError(
                f"out is {tuple(out.shape)} {out.dtype} on {out.device}, it must be "
                f"{self.shape} {self.dtype} on {self.device}"
            )
        memory = layout.in_memory(out, self.order)
        plain = memory.is_contiguous() and not memory.is_neg()
        if self.holes and plain:
            holes.open_up(codec, self.payload, inner, self.dtype, kernels, out=memory)
        elif codec.fills and plain and not self.holes:
            codec.decode(self.payload, inner, self.dtype, kernels, out=memory)  # type: ignore[call-arg]
        else:
            memory.copy_(self._decode(codec, inner, kernels))
        return out

    def _decode(self, codec: Codec, inner: tuple[int, ...], kernels: Backend) -> Tensor:
        if self.holes:
            return holes.open_up(codec, self.payload, inner, self.dtype, kernels)
        return codec.decode(self.payload, inner, self.dtype, kernels)

    def max_error(self, x: Tensor) -> float:
        """The largest |decoded - x| over the finite values of `x`, in float64."""
        if tuple(x.shape) != self.shape:
            raise UnsupportedError(f"tensor has shape {tuple(x.shape)}, this is {self.shape}")
        if x.numel() == 0:
            return 0.0
        y = self.decompress()
        if not x.dtype.is_floating_point:
            return float((y.to(torch.int64) - x.to(torch.int64)).abs().max().item())
        difference = (y.to(torch.float64) - x.detach().to(torch.float64)).abs()
        difference = difference.where(torch.isfinite(x), torch.zeros_like(difference))
        return float(difference.max().item())

    def to_bytes(self, *, checksum: bool = True) -> bytes:
        """The self-describing stream of docs/format.md."""
        header = stream.Header(
            codec_id=registry.by_name(self.codec).id,
            dtype=self.dtype,
            shape=self.shape,
            order=self.order,
            bound_code=self.bound.code,
            bound_number=self.bound.number,
            promised=self.promised,
            holes=self.holes,
        )
        payload = self.payload.cpu().numpy()
        return stream.write(header, payload.data, checksum=checksum)

    @classmethod
    def from_bytes(
        cls, blob: bytes | bytearray | memoryview, *, device: str | torch.device = "cpu"
    ) -> Packed:
        """A stream read back; `CorruptStreamError` if it is not what was written."""
        header, payload = stream.read(blob)
        codec = registry.by_id(header.codec_id)
        if header.dtype not in codec.dtypes:
            raise CorruptStreamError(
                f"stream says codec {codec.name!r} holds {header.dtype}, which it cannot"
            )
        try:
            bound = from_code(header.bound_code, header.bound_number)
        except BoundError as error:
            raise CorruptStreamError(f"stream has an impossible bound: {error}") from None
        data = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else None
        return cls(
            codec=codec.name,
            bound=bound,
            promised=header.promised,
            dtype=header.dtype,
            shape=header.shape,
            order=header.order,
            payload=(torch.empty(0, dtype=torch.uint8) if data is None else data).to(device),
            holes=header.holes,
        )

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        shape = "×".join(map(str, self.shape)) or "scalar"
        return (
            f"Packed({shape} {kind}, {self.codec}, {self.bound!r}, "
            f"{self.nbytes:,} of {self.plain_nbytes:,} bytes, {self.ratio:.2f}×)"
        )

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        shape = "×".join(map(str, self.shape)) or "scalar"
        unit = "|x|·" if self.bound.kind == "pointwise" else ""
        lines = [
            f"Packed {kind} tensor, {shape}",
            f"  ratio  {self.ratio:.2f}× ({self.plain_nbytes:,} → {self.nbytes:,} bytes, "
            f"{8 * self.nbytes / max(1, math.prod(self.shape)):.2f} bits a value)",
            f"  bound  {self.bound!r}, so |decoded − x| ≤ {unit}{self.promised:.6g}",
            f"  codec  {self.codec}" + (f": {self.why}" if self.why else ""),
        ]
        return "\n".join(lines)
