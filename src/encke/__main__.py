"""`python -m encke` is the command `encke`."""

from __future__ import annotations

import os
import sys

from encke.cli import main

if __name__ == "__main__":
    code = main()
    if sys.argv[1:2] == ["train"] and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # A rank of torchrun. Now and then threads of torch's groups abort a process that ends
        # in the usual way, and torchrun would stop the other ranks.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)
    sys.exit(code)
