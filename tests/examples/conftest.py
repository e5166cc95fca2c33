"""Makes the modules of the examples importable, as they are for one another."""

from __future__ import annotations

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.extend(str(EXAMPLES / folder) for folder in (".", "climate", "jets"))
