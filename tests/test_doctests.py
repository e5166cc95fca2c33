"""The examples in the docstrings of the installed package do what they show."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil

import pytest

import encke

# Python modules only: a compiled one has no docstrings of ours and may not be built.
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(encke.__path__, "encke.")
    if not module.name.rpartition(".")[2].startswith("_")
)


if importlib.util.find_spec("triton") is None:
    # Where Triton has no package its kernels cannot be imported; the folder itself can.
    MODULES = [name for name in MODULES if not name.startswith("encke.ops.triton.")]


@pytest.mark.parametrize("name", ["encke", *MODULES])
def test_docstring_examples_hold(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0
