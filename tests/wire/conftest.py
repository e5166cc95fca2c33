"""Makes the worlds of this folder, and what starts ranks for the tape's, importable."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tape")]
