"""`python -m encke` is the command `encke`."""

from __future__ import annotations

import sys

from encke.cli import main

if __name__ == "__main__":
    sys.exit(main())
