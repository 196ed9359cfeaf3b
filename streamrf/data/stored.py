"""What tells that stored data has changed, without reading it: the size and the time, or the ETag, of every file.

A checkpoint keeps these marks: sums of rows that were read before a change must not be mixed with rows read after it.
They say nothing of what the data is (that is the fingerprint), so a touched file counts as changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from streamrf.data.locations import filesystem, is_url, reading

Marks = dict[str, str]  # by the name of a file, as people would say it

MOST = 2000  # marks that are kept one by one; more are kept by runs of files
_VERSIONS = ("ETag", "etag", "content_md5", "LastModified", "last_modified", "updated", "mtime", "modified", "created")


def file_marks(files: Mapping[str, str]) -> Marks:
    """The marks of files, given as name and place; a store that tells nothing of a file leaves it out."""
    found = {name: _remote_mark(place) if is_url(place) else _local_mark(place) for name, place in files.items()}
    return {name: mark for name, mark in found.items() if mark}


def folder_marks(location: str, folder: str = "") -> Marks:
    """The marks of all files below a folder of a location; none where the store cannot list, as over HTTP."""
    below = _listed(location, folder) if is_url(location) else _walked(os.path.join(location, folder))
    prefix = f"{base_name(location)}/{folder}".rstrip("/")
    return {f"{prefix}/{name}": mark for name, mark in below}


def base_name(location: str) -> str:
    """The last part of a location: data that was moved elsewhere is the same data."""
    return location.rstrip("/").rpartition("/")[2]


def in_brief(marks: Marks) -> Marks:
    """At most MOST marks: of more files, one for each run of neighbours."""
    if len(marks) <= MOST:
        return marks
    names = sorted(marks, key=lambda name: (len(name), name))  # chunk 9 before chunk 10
    step = -(-len(names) // MOST)
    runs = [names[start : start + step] for start in range(0, len(names), step)]
    joined = {f"one of {run[0]} to {run[-1]}": _digest("".join(f"{n}:{marks[n]};" for n in run)) for run in runs}
    return {"the number of files": str(len(names)), **joined}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _walked(folder: str) -> Iterator[tuple[str, str]]:
    with reading(folder):
        for place, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(place, name)
                yield os.path.relpath(path, folder), _local_mark(path)


def _local_mark(path: str) -> str:
    with reading(path):
        status = os.stat(path)
    seconds, rest = divmod(status.st_mtime_ns, 10**9)
    when = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(" ")
    return f"{status.st_size} bytes of {when}.{rest:09d}"


def _listed(url: str, folder: str) -> Iterator[tuple[str, str]]:
    try:
        fs, root = filesystem(f"{url}/{folder}".rstrip("/"))
        fs.invalidate_cache()  # another process may have written since
        found = fs.find(root, detail=True)
    except Exception:  # no way to list: nothing can be said
        return
    for name, facts in found.items():
        yield name[len(root) :].lstrip("/"), _mark(facts)


def _remote_mark(url: str) -> str:
    try:
        fs, path = filesystem(url)
        fs.invalidate_cache()
        return _mark(fs.info(path))
    except Exception:
        return ""


def _mark(facts: Mapping[str, Any]) -> str:
    version = next((str(facts[name]).strip('"') for name in _VERSIONS if facts.get(name)), "no version")
    return f"{facts.get('size')} bytes of {version}"
