"""Checkpoints of a pass: the state and the exact set of rows in it, saved so that the two can never disagree.

Every save has a number and is two files that are never changed once written: first ``save-N-RANDOM.safetensors`` with
the arrays, then, once that is durable, the small ``save-N-RANDOM.json`` with the ledger and the size and digest of the
arrays. A save exists when its JSON does. The newest whole save counts; the one before is kept until the next begins.
"""

from __future__ import annotations

import re
import secrets
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.storage import safejson
from streamrf.support.storage.backends import open_storage
from streamrf.support.storage.files import AnyPath
from streamrf.support.storage.safejson import JSON
from streamrf.support.storage.tensors import (
    Arrays,
    FileRecord,
    HashingReader,
    HashingWriter,
    check_writable,
    read_checked,
    total_bytes,
    write_tensors,
)

PROTOCOL = 1
STORED = "stored"  # in an identity: by the name of each file of the data, what tells that it has changed
_FORMAT = "streamrf-checkpoint"
_NAME = re.compile(r"save-(\d{8})-[0-9a-f]{8}\.(json|safetensors)")


@runtime_checkable
class HasJson(Protocol):
    def to_json(self) -> object: ...


@dataclass
class SavedPass:
    """What was saved. The ledger is JSON, for ``RowSet.from_json`` or ``Ledger.from_json``."""

    ledger: Any
    arrays: Arrays
    extra: JSON
    saved_at: float  # seconds since 1970
    number: int


class Checkpoint:
    """The saves of one run in one directory or URL. A second run that saves to the same place is refused."""

    def __init__(self, directory: AnyPath) -> None:
        self._storage = open_storage(directory)
        self.place = self._storage.place
        self._known: set[str] | None = None  # names of saves seen or made by us; None: not listed yet
        self._good: str | None = None  # the save we loaded or made last, without its ending

    def exists(self) -> bool:
        """Whether there is a save to resume from."""
        return bool(self._saves())

    def load(self, identity: JSON) -> SavedPass | None:
        """The newest whole save, or None if there is none yet.

        MismatchError, naming what differs, for a save of another identity. If the newest save is damaged, the one
        before is loaded with a warning. FileFormatError if none is whole.
        """
        identity = safejson.plain(identity, "identity")
        saves = self._saves()
        self._known, self._good = set(saves), None
        damage: list[FileFormatError] = []
        for save in reversed(saves):
            try:
                found = self._read(save, identity)
            except FileFormatError as error:
                damage.append(error)
                continue
            self._good = save
            self._warn_of(damage, found)
            return found
        if damage:
            raise FileFormatError(f"{damage[0]} No whole save is left in {self.place}; remove it to start again.")
        return None

    def save(self, identity: JSON, ledger: HasJson | object, arrays: Arrays, extra: JSON) -> None:
        """Save atomically and durably. Whenever this is interrupted, the save before is still whole.

        Needs room for two saves. MismatchError if another run has saved here since we last listed the saves.
        """
        if self._known is None:
            self.load(identity)
        check_writable(arrays, "checkpoint")
        self._refuse_other_run()
        self._delete_all_but(self._good)
        save = f"save-{self._next_number():08d}-{secrets.token_hex(4)}"
        record = self._write_arrays(f"{save}.safetensors", arrays)
        document = {
            "format": _FORMAT,
            "protocol": PROTOCOL,
            "identity": identity,
            "ledger": ledger.to_json() if isinstance(ledger, HasJson) else ledger,
            "extra": extra,
            "saved_at": time.time(),
            "arrays": record.to_json(),
        }
        self._known = {*(self._known or ()), save}  # ours, even where Ctrl-C comes between this line and the next
        self._storage.write_small(f"{save}.json", safejson.seal(document, "checkpoint"))
        self._good = save

    def clear(self) -> None:
        """Remove our files, and the directory if nothing else is in it."""
        self._delete_all_but(None)
        self._known, self._good = None, None
        self._storage.remove_if_empty()

    def _saves(self) -> list[str]:
        """Saves that have their JSON, oldest first."""
        return [name.removesuffix(".json") for name in self._names() if name.endswith(".json")]

    def _names(self) -> list[str]:
        return [name for name in self._storage.names() if _NAME.fullmatch(name)]

    def _next_number(self) -> int:
        return 1 + max((int(save.split("-")[1]) for save in self._known or ()), default=0)

    def _refuse_other_run(self) -> None:
        others = set(self._saves()) - (self._known or set())
        if others:
            raise MismatchError(
                f"Another run has saved to the checkpoint {self.place} ({max(others)}) while this one was running; "
                "stop one of the two, or give each its own checkpoint."
            )

    def _delete_all_but(self, keep: str | None) -> None:
        """JSON before arrays: a save that is half removed no longer exists."""
        for name in sorted(self._names(), key=lambda name: (not name.endswith(".json"), name)):
            if keep is None or not name.startswith(keep):
                self._storage.delete(name)

    def _write_arrays(self, name: str, arrays: Arrays) -> FileRecord:
        hashing = HashingWriter(partial(write_tensors, arrays=arrays, where=name))
        self._storage.write_large(name, hashing, total_bytes(arrays))
        return hashing.record

    def _read(self, save: str, identity: JSON) -> SavedPass:
        document = self._read_json(f"{save}.json")
        self._check_identity(document["identity"], identity)
        record = FileRecord.from_json(document["arrays"], f"{self.place}/{save}.json")
        arrays = self._read_arrays(f"{save}.safetensors", record)
        number = int(save.split("-")[1])
        return SavedPass(document["ledger"], arrays, document["extra"], document["saved_at"], number)

    def _check_identity(self, theirs: JSON, ours: JSON) -> None:
        run, here = ({k: v for k, v in each.items() if k != STORED} for each in (theirs, ours))
        if run != here:
            raise MismatchError(
                f"The checkpoint {self.place} belongs to another run: {_differences(run, here)}. "
                "Use another checkpoint, or remove this one."
            )
        before, now = theirs.get(STORED), ours.get(STORED)
        if not isinstance(before, dict | None):
            raise FileFormatError(f"The checkpoint {self.place} does not name the files of its data; it is damaged.")
        if before != now and before is not None and now is not None:  # earlier versions kept no marks
            raise MismatchError(
                f"{_changes(before, now)} after the checkpoint {self.place} was begun, and its sums would mix old rows "
                "with new ones (a file that was only touched or copied counts as changed). To start over, remove the "
                "checkpoint or name another with `checkpoint`."
            )

    def _read_json(self, name: str) -> JSON:
        where = f"{self.place}/{name}"
        n_bytes = self._storage.size(name)
        if n_bytes is None or n_bytes > safejson.MAX_BYTES:
            raise FileFormatError(f"{where} has {n_bytes} bytes; it is damaged.")
        with self._storage.open(name) as stream:
            data = HashingReader(stream, where).take(n_bytes)
        document = safejson.unseal(data, where, form=_FORMAT, newest=PROTOCOL)
        kinds: dict[str, type | tuple[type, ...]] = {
            "identity": dict, "ledger": (list, dict), "extra": dict, "saved_at": (int, float), "arrays": dict,
        }  # fmt: skip
        for key, kind in kinds.items():
            if not isinstance(document.get(key), kind) or isinstance(document[key], bool):
                raise FileFormatError(f"{where} is not complete: it has no valid '{key}'; it is damaged.")
        return document

    def _read_arrays(self, name: str, record: FileRecord) -> Arrays:
        where = f"{self.place}/{name}"
        n_bytes = self._storage.size(name)
        if n_bytes != record.n_bytes:
            raise FileFormatError(f"{where} has {n_bytes or 0} bytes and should have {record.n_bytes}: it is damaged.")
        with self._storage.open(name) as stream:
            return read_checked(HashingReader(stream, where), record)

    def _warn_of(self, damage: list[FileFormatError], found: SavedPass) -> None:
        if damage:
            text = f"{damage[0]} The run resumes from the save before it (number {found.number}), which is whole."
            warnings.warn(text, UserWarning, stacklevel=3)


def _differences(theirs: object, ours: object) -> str:
    """``key is 'a' there and 'b' here`` for everything that differs; nested keys are joined with dots."""
    there, here = dict(_flat(theirs)), dict(_flat(ours))
    keys = [key for key in sorted(there.keys() | here.keys()) if there.get(key, _ABSENT) != here.get(key, _ABSENT)]
    return "; ".join(f"{key} is {there.get(key, _ABSENT)!r} there and {here.get(key, _ABSENT)!r} here" for key in keys)


def _changes(before: JSON, now: JSON) -> str:
    """Which file changed first, in the order of names, and how many others did."""
    names = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    first = next((name for name in names if name in before and name in now), names[0])
    others = f", and so did {len(names) - 1} other files," if len(names) > 1 else ""
    if first in before and first in now:
        return f"{first} changed (then {before[first]}, now {now[first]}){others}"
    return f"{first} {'appeared' if first in now else 'was removed'}{others}"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def _flat(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, value


class Clock:
    """Says when the next save is due: after ``every`` seconds, or later if saving is slow.

    A save that took t seconds is followed by at least t * (1 / share - 1) seconds of work, so that saving stays below
    ``share`` of the run. ``every=0`` saves at every chance, whatever it costs.
    """

    def __init__(self, every: float, share: float = 0.05, now: Callable[[], float] = time.monotonic) -> None:
        self.every = every
        self._share = share
        self._now = now
        self._last = now()
        self._took = 0.0
        self.saves = 0

    @property
    def interval(self) -> float:
        """Seconds of work between two saves, given how long the last one took."""
        return max(self.every, self._took * (1 / self._share - 1)) if self.every else 0.0

    @property
    def age(self) -> float:
        """Seconds since the last save ended, or since the start."""
        return self._now() - self._last

    def due(self) -> bool:
        return self.age >= self.interval

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Surrounds a save: measures it and starts the next interval."""
        start = self._now()
        try:
            yield
        finally:  # a save that failed is not tried again at once
            self._last = self._now()
            self._took = self._last - start
            self.saves += 1
