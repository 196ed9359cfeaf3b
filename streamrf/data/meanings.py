"""What values of text files stand for: said once, and kept with all that is made of such a file, as later files are
read likewise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MEANINGS = ("dates", "decimal", "null")  # other options of text are of one file
IN_PARQUET, IN_ZARR = b"streamrf.reading", "reading"  # in a footer, and in the note of a group


def meanings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that say what values stand for, as JSON has them."""
    given = {name: value for name, value in options.items() if name in MEANINGS}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def kept_meanings(kept: object) -> dict[str, Any]:
    """What a file that was converted keeps of them; nothing where it is not as we write it."""
    return {name: kept[name] for name in MEANINGS if isinstance(kept, dict) and _good(kept.get(name))}


def meanings_in_footer(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """Likewise, of a parquet file."""
    try:
        return kept_meanings(json.loads((metadata or {}).get(IN_PARQUET, b"{}")))
    except ValueError:
        return {}


def _good(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
