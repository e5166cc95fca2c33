"""Which backend a tensor's kernels come from: one rule, overridable.

CPU tensors take `native` where it was built, tensors on a GPU (cuda, which is AMD's name
in torch too, and xpu) take `triton` where it can be imported, and everything else takes
`reference`. The argument `backend=` goes before the environment variable
`ENCKE_BACKEND`, and both before the rule.
"""

from __future__ import annotations

import functools
import os

import torch

from encke.errors import BackendError
from encke.ops.backend import Backend

NAMES = ("native", "reference", "triton")


@functools.cache
def load(name: str) -> Backend:
    """The backend called `name`; `BackendError` says why it cannot be had."""
    if name == "native":
        from encke.ops import native

        return native.load()
    if name == "reference":
        from encke.ops import reference

        return reference.load()
    if name == "triton":
        from encke.ops import triton

        return triton.load()
    raise BackendError(f"backend is {name!r}, allowed are {', '.join(NAMES)}")


@functools.cache
def native_problem() -> str | None:
    """Why the native backend is not there, or None if it is."""
    try:
        load("native")
    except BackendError as error:
        return str(error)
    return None


@functools.cache
def triton_problem() -> str | None:
    """Why the Triton backend is not there, or None if it is."""
    from encke.ops import triton

    return triton.problem()


def of_host() -> Backend:
    """The backend of CPU tensors by the rule, whatever is asked for elsewhere."""
    return _by_rule("cpu")


@functools.cache
def _by_rule(kind: str) -> Backend:
    from encke.ops.triton import DEVICES

    if kind == "cpu" and native_problem() is None:
        return load("native")
    if kind in DEVICES and triton_problem() is None:
        return load("triton")
    return load("reference")


def select(device: torch.device, name: str | None = None) -> Backend:
    """The backend for a tensor on `device`.

    >>> select(torch.device("cpu"), "reference").name
    'reference'
    """
    name = name or os.environ.get("ENCKE_BACKEND")
    if name is None:
        return _by_rule(device.type)
    if name == "native" and device.type != "cpu":
        raise BackendError(f"backend 'native' works on cpu tensors, this one is on {device}")
    if name == "triton":
        from encke.ops import triton

        triton.check(device)
    return load(name)
