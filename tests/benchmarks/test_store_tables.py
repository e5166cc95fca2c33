"""The tables about the store say what the result files say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks" / "store"


def test_the_page_has_the_tables_of_the_committed_rows() -> None:
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("store_tables", FOLDER / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(tables)
        text = tables.PAGE.read_text(encoding="utf-8")
        made = tables.page_with(text)
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("rows", None)
    assert made == text, "write it anew with `python benchmarks/store/tables.py --write`"
