"""Which backend a tensor's kernels come from: one rule, overridable.

CPU tensors take `native` where it was built and `reference` otherwise; every
other device takes `reference`. The argument `backend=` goes before the
environment variable `ENCKE_BACKEND`, and both before the rule.
"""

from __future__ import annotations

import functools
import os

import torch

from encke.errors import BackendError
from encke.ops.backend import Backend

NAMES = ("native", "reference")


@functools.cache
def load(name: str) -> Backend:
    """The backend called `name`; `BackendError` says why it cannot be had."""
    if name == "native":
        from encke.ops import native

        return native.load()
    if name == "reference":
        from encke.ops import reference

        return reference.load()
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
def _by_rule(kind: str) -> Backend:
    return load("native" if kind == "cpu" and native_problem() is None else "reference")


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
    return load(name)
