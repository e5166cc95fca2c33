"""What every test starts from."""

from __future__ import annotations

import importlib

import pytest


@pytest.fixture(autouse=True)
def any_slowdown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tapes of the small networks here take the time they take.

    What is left to autograd because of its cost follows from measured times, which no test may
    depend on. Tests of that very choice say `slowdown=`.
    """
    attaching = importlib.import_module("encke.control.attach")
    monkeypatch.setattr(attaching, "SLOWDOWN", None)
