"""docs/kfac.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from encke.wire.kfac import Settings

DOCUMENT = (Path(__file__).parents[3] / "docs" / "kfac.md").read_text()


def test_its_examples_run() -> None:
    programs = re.findall(r"^```python\n(.*?)^```", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    assert len(programs) >= 2
    namespace: dict[str, object] = {}
    for number, program in enumerate(programs, start=1):
        exec(compile(program, f"kfac.md, example {number}", "exec"), namespace)


def test_it_names_every_option() -> None:
    for option in Settings.__dataclass_fields__:
        assert f"`{option}`" in DOCUMENT or f"`{option}=" in DOCUMENT, option
