"""Tables that are several parquet files: which files those are, and the marker that says that all are there.

Object stores have no rename, so the parts of an output stand under their names before it is whole. ``_SUCCESS`` is
written last and names them. What a killed run left there, and files that do not belong, are then found on reading.
Other programs write an empty ``_SUCCESS``, or none: their files are taken as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from streamrf.data.locations import filesystem, is_pattern, is_url, matches, reading, without_query
from streamrf.support.errors import DataError, FileFormatError
from streamrf.support.storage import safejson

ENDINGS = (".parquet", ".parq", ".pq")
DONE = "_SUCCESS"
PART = re.compile(r"part-\d+-(?P<run>[0-9a-f]{8})\.parquet")  # as one run writes them to an object store
_FORMAT = "streamrf-parts"
_AGAIN = "write it again with `overwrite=True`"


def marker(parts: Iterable[str]) -> bytes:
    """What ``_SUCCESS`` holds: the names of all parts."""
    return safejson.encode({"format": _FORMAT, "parts": sorted(parts)}, DONE)


def data_files(location: str) -> list[str]:
    """The parquet files of a pattern or directly in a directory, by name; of a file, itself."""
    if is_pattern(location):
        return matches(location) or [location]  # a remote name may look like a pattern
    return _remote_files(location) if is_url(location) else _local_files(location)


def _local_files(location: str) -> list[str]:
    if not os.path.isdir(location):
        return [location]
    with reading(location):
        found = {name: os.path.join(location, name) for name in os.listdir(location)}
        done = None
        if DONE in found and os.path.isfile(found[DONE]):
            with open(found[DONE], "rb") as file:
                done = file.read(safejson.MAX_BYTES)
    return [found[name] for name in _chosen(list(found), done, location)] or [location]


def _remote_files(url: str) -> list[str]:
    fs, path = filesystem(url)
    with reading(url):
        if without_query(url).endswith(ENDINGS) and not fs.isdir(path):
            return [url]
        fs.invalidate_cache()  # another process may have written since
        found = {name.rstrip("/").rpartition("/")[2]: name for name in fs.ls(path, detail=False)}
        done = fs.cat_file(found[DONE], end=safejson.MAX_BYTES) if DONE in found else None
    return [fs.unstrip_protocol(found[name]) for name in _chosen(list(found), done, url)] or [url]


def _chosen(names: list[str], done: bytes | None, location: str) -> list[str]:
    """The data among the files of a folder. Writers leave files such as _metadata and ._SUCCESS.crc beside it."""
    data = sorted(name for name in names if name.endswith(ENDINGS) and not name.startswith(("_", ".")))
    listed = None if done is None else _listed(done, location)
    if listed is not None:
        _check_listed(data, listed, location)
        return data
    runs = {match["run"] for name in data if (match := PART.fullmatch(name))}
    if runs and done is None:
        raise DataError(f"{location} is not complete: it has parts and no {DONE}, so its run did not end; {_AGAIN}")
    if len(runs) > 1:
        raise DataError(f"{location} holds parts of {len(runs)} runs, and belongs to none of them; {_AGAIN}")
    return data


def _listed(done: bytes, location: str) -> list[str] | None:
    """The parts that a marker of ours names; None for one of another program."""
    try:
        document = safejson.decode(done, f"{location}/{DONE}") if done.lstrip().startswith(b"{") else None
    except FileFormatError:
        return None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        return None
    parts = document.get("parts")
    if not isinstance(parts, list) or not all(isinstance(name, str) for name in parts):
        raise DataError(f"{location}/{DONE} does not name the parts; it is damaged: {_AGAIN}")
    return parts


def _check_listed(data: list[str], listed: list[str], location: str) -> None:
    lost, others = sorted(set(listed) - set(data)), sorted(set(data) - set(listed))
    if lost:
        raise DataError(
            f"{location} lacks {lost[0]} and has {len(listed) - len(lost)} of the {len(listed)} parts that its {DONE}"
            f" names; {_AGAIN}"
        )
    if others:
        raise DataError(
            f"{location} holds {others[0]}, which is none of the {len(listed)} parts that its {DONE} names: remove it,"
            f" or {_AGAIN}"
        )
