"""Every tensor that a tape keeps, as rows of a study's results."""

from __future__ import annotations

import math
from typing import Any

from encke.tape import Tape


def layers(tape: Tape) -> list[dict[str, Any]]:
    """The tensors of the last forward pass, as `layers` of docs/study-results.md."""
    return [
        {
            "module": record.site.module,
            "op": record.site.op,
            "role": record.site.role,
            "how": record.how,
            "codec": record.codec,
            "bound": record.error or None,
            "elements": math.prod(record.shape),
            "plain_bytes": record.plain,
            "stored_bytes": record.stored,
            "why": record.why,
        }
        for record in tape.records
    ]


def codec_shares(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Stored bytes by codec.

    >>> codec_shares([{"codec": "mask", "stored_bytes": 3}, {"codec": "", "stored_bytes": 0}])
    {'mask': 3}
    """
    found: dict[str, int] = {}
    for row in rows:
        if row["stored_bytes"]:
            found[row["codec"]] = found.get(row["codec"], 0) + row["stored_bytes"]
    return found
