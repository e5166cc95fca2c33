"""What has no kernels on the device goes through the host's, and back.

That is `entropy` and `predict`. The reference backend would run them where the tensor is,
but their coder takes thousands of small dependent steps, each a handful of launches: a copy
to the host and the native kernels there are far quicker. Why there is no coder on the device
yet is written down in docs/gpu.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from encke.ops.backend import Backend


def backend() -> Backend:
    """The backend of CPU tensors, whatever the environment prefers elsewhere."""
    from encke.ops.select import of_host

    return of_host()


def returned(values: Tensor, device: torch.device, out: Tensor | None) -> Tensor:
    """Values on the device they are wanted on, in `out` if that is given."""
    return values.to(device) if out is None else out.copy_(values.view(out.shape))
