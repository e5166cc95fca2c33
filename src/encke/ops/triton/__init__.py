"""Triton kernels for tensors on a GPU, in the same format as every other backend.

`fixed`, `group`, `index`, `mask` and ReLU's bits run on the device. `entropy` and `predict` go
through the host (see `encke.ops.triton.host` for why). docs/gpu.md says how the kernels work.

With `TRITON_INTERPRET=1` set before Triton is imported, the same kernels run on CPU tensors,
slowly; that is how they are tested where there is no GPU.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

import torch

from encke.errors import BackendError

if TYPE_CHECKING:
    from encke.ops.triton.backend import Triton

#: Device types that Triton compiles for. Torch calls AMD's devices "cuda", too.
DEVICES = ("cuda", "xpu")


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def problem() -> str | None:
    """Why the backend cannot be had, or None if it can."""
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return (
            f"Triton is not there ({error}); tensors on a GPU take the reference backend, "
            "slower. `pip install triton` to have it"
        )
    return None


def device_here() -> str | None:
    """The type of a device that kernels can run on in this process, or None."""
    for kind in DEVICES:
        if torch.get_device_module(kind).is_available():
            return kind
    return "cpu" if interpreting() else None


def check(device: torch.device) -> None:
    """Raise unless kernels can run on tensors of this device."""
    if device.type in DEVICES or (device.type == "cpu" and interpreting()):
        return
    raise BackendError(
        f"backend 'triton' works on tensors of {' and '.join(DEVICES)}, this one is on "
        f"{device}; on the CPU it runs with TRITON_INTERPRET=1 in the environment, slowly"
    )


def load() -> Triton:
    """The backend, or `BackendError` with the reason why there is none."""
    reason = problem()
    if reason is not None:
        raise BackendError(reason)
    from encke.ops.triton.backend import Triton

    return Triton()
