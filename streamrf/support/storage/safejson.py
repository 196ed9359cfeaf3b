"""JSON as our files use it: strict, bounded, exact, and sealed with a digest where a file has no other guard."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np

from streamrf.support.errors import FileFormatError, InputError

JSON = dict[str, object]  # a document: what it holds is checked where it is read
MAX_BYTES = 64 * 2**20
MAX_DEPTH = 64
_SEAL = "sha256"


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """``value`` as dicts, lists, text, numbers, booleans and None; what JSON cannot hold exactly is an InputError."""
    if depth > MAX_DEPTH:
        raise InputError(f"{where} is nested more than {MAX_DEPTH} levels deep.")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return _finite(value, where)
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {_key(key, where): plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    raise InputError(f"{where} is a {type(value).__name__}, which JSON cannot hold; arrays go to an array file.")


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise InputError(f"{where} is {value}, which JSON cannot hold; store None instead.")
    return value


def _key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise InputError(f"{where} has the key {key!r}; keys must be text.")
    return key


def encode(value: Any, where: str) -> bytes:
    """Readable JSON text; the same value always gives the same bytes. Pure ASCII, so that any text survives."""
    data = json.dumps(plain(value, where), indent=1, allow_nan=False, sort_keys=True).encode("ascii") + b"\n"
    if len(data) > MAX_BYTES:
        raise InputError(f"{where} takes {len(data)} bytes as JSON; at most {MAX_BYTES} are allowed.")
    return data


def decode(data: bytes, where: str) -> Any:
    """The value in JSON text; anything that is not strict JSON of bounded depth is a FileFormatError."""
    if len(data) > MAX_BYTES:
        raise FileFormatError(f"{where} takes {len(data)} bytes; at most {MAX_BYTES} are allowed.")
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} is not valid JSON ({error}); the file is damaged.") from None
    if _deeper_than(value, MAX_DEPTH):
        raise FileFormatError(f"{where} is nested more than {MAX_DEPTH} levels deep; the file is damaged.")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


def _deeper_than(value: Any, limit: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return limit < 0 or any(_deeper_than(child, limit - 1) for child in children)


def digest(value: Any) -> str:
    """SHA-256 of the value itself: white space and the order of keys do not count."""
    text = json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def seal(document: dict[str, Any], where: str) -> bytes:
    """JSON text that carries its own digest."""
    document = plain(document, where)
    return encode({**document, _SEAL: digest(document)}, where)


def unseal(data: bytes, where: str, *, form: str, newest: int) -> dict[str, Any]:
    """The document that was sealed, of the format ``form`` and a protocol up to ``newest``."""
    document = decode(data, where)
    if not isinstance(document, dict) or document.get("format") != form:
        raise FileFormatError(f"{where} is not a {form} file.")
    _check_protocol(document.get("protocol"), newest, where)
    found = document.pop(_SEAL, None)
    if found != (expected := digest(document)):
        raise FileFormatError(f"{where} is damaged: its digest is {expected}, but it says {str(found)[:64]}.")
    return document


def _check_protocol(protocol: Any, newest: int, where: str) -> None:
    """Before the digest: a later protocol may seal its files in another way."""
    if type(protocol) is not int or protocol < 1:
        raise FileFormatError(f"{where} has no protocol number; the file is damaged.")
    if protocol > newest:
        raise FileFormatError(
            f"{where} has protocol {protocol}, and this version of streamrf reads up to {newest}; "
            "upgrade streamrf to read it."
        )
