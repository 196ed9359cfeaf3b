"""Files that can be read in order only (CSV, JSON lines, Arrow) as parquet: converted once, and reused.

The parquet file lies in ``.streamrf-cache`` beside the data, or in the user's cache folder where that cannot be
written. Its name holds a hash of what it was made of: path, size, time of change, options and version of the reader.
It is complete under its name or not there, so any number of processes may want it at once.
"""

# mypy: disable-error-code="type-abstract"
# A kind of reader is named by its abstract class.

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrf.data.locations import absolute, filesystem, is_pattern, is_url, matches, opened, reading
from streamrf.data.meanings import MEANINGS, meanings
from streamrf.data.readers import reader_by_ending
from streamrf.data.readers.base import (
    BatchReader,
    Reader,
    RowReader,
    SequentialReader,
    TextReader,
    Unfit,
    registered,
    silent,
)
from streamrf.data.writers.files import staged_file
from streamrf.support.errors import DataError, InputError, StorageError
from streamrf.support.progress import Reporter

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = ".streamrf-cache"
HOME = "STREAMRF_CACHE"  # in the environment: another folder for all
OPTIONS = ("dates", "decimal", "delimiter", "encoding", "header", "null")  # of files; readers may have more
SAY_EVERY = 10.0  # seconds between two notes about a first read
SHOWN_ROWS = 200_000  # fewer are there before one would see a progress bar


@dataclass(frozen=True)
class Reading:
    """How files of text are read: options of their readers, and whether the parquet made of them is kept.

    ``trained`` are options that a model was trained with. They hold for files that have such, unless others are given.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    cache: bool = True
    trained: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        others = {name for reader in registered(SequentialReader).values() for name in reader.options}
        for name in sorted(set(self.options) - set(OPTIONS) - others):
            raise InputError(
                f"`{name}` is not an option of files, which are {', '.join(OPTIONS)}: leave it out. What a model is to"
                " be goes into `recipe`, how a run is carried out into `settings`, and how columns are coded into"
                " `columns` (a Handling)"
            )

    @property
    def meanings(self) -> dict[str, Any]:
        """What a model keeps."""
        return meanings({**self.trained, **self.options})

    def by_training(self, reader: type[BatchReader]) -> dict[str, Any]:
        """The options that hold because a model was trained with them."""
        names = (set(self.trained) & reader.options) - set(self.options)
        return {name: self.trained[name] for name in MEANINGS if name in names}


def ordered_files(location: str) -> list[str]:
    """The files at a path, URL, pattern or directory that can be read in order only; none where any cannot."""
    if is_pattern(location):
        found = matches(location)
    elif not is_url(location) and os.path.isdir(location):
        found = _in_folder(location)
    else:
        found = [location]
    return found if found and all(_reader(file) is not None for file in found) else []


def _in_folder(folder: str) -> list[str]:
    """The files of a directory, unless it is a table that can be read in parts."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith(("_", ".")))
    if any(reader_by_ending(RowReader, name) is not None for name in (os.path.basename(folder), *names)):
        return []
    return [path for name in names if _reader(path := os.path.join(folder, name)) is not None]


def _reader(file: str) -> type[BatchReader] | None:
    found = reader_by_ending(Reader, file)
    if found is None or found.format in registered(RowReader):
        return None
    return found if issubclass(found, BatchReader) else None


def as_parquet(files: Sequence[str], reading: Reading, reporter: Reporter) -> tuple[list[str], list[object]]:
    """Parquet files of the same rows, and what must live as long as they are used: folders that are deleted then."""
    keeps: list[object] = []
    folder = None
    if not reading.cache:
        temporary = tempfile.TemporaryDirectory(prefix="streamrf-")
        keeps, folder = [temporary], Path(temporary.name)
    entries = [_entry(absolute(file), reading, folder) for file in files]
    made = sum(entry.make(reporter) for entry in entries)
    if len(entries) > 1:
        entries, again = _alike(entries, reporter)
        made = max(made, again)
    _tell(entries, made, reading, reporter)
    return [str(entry.place) for entry in entries], keeps


def _entry(file: str, reading: Reading, folder: Path | None) -> Entry:
    reader = _reader(file)
    assert reader is not None
    return Entry(file, {**reading.by_training(reader), **reading.options}, folder)


def _alike(entries: list[Entry], reporter: Reporter) -> tuple[list[Entry], int]:
    """The same files with the same types: a column that is text in one of them is text in all."""
    import pyarrow as pa

    from streamrf.data.readers.text_types import joined

    kinds: dict[str, pa.Field] = {}
    for entry in entries:
        for kind in entry.kinds:
            kinds[kind.name] = joined(kinds.get(kind.name, kind), kind)
    made, alike = 0, []
    for entry in entries:
        schema = pa.schema([kinds[kind.name] for kind in entry.kinds])
        if issubclass(entry.reader, TextReader) and not schema.equals(entry.kinds, check_metadata=True):
            entry = Entry(entry.location, entry.options, entry.folder, schema)
            made += entry.make(reporter)
        alike.append(entry)
    return alike, made


def _tell(entries: list[Entry], made: int, reading: Reading, reporter: Reporter) -> None:
    """One sentence about the conversion, and those about columns."""
    what = os.path.basename(entries[0].location) if len(entries) == 1 else f"{len(entries):,} files"
    place = entries[0].place.parent
    if not reading.cache:
        reporter.note(f"{what}: converted to parquet in a temporary folder")
    elif made:
        reporter.note(f"{what}: converted to parquet in {place}, reused while unchanged (`cache=False` keeps none)")
    else:
        reporter.note(f"{what}: unchanged, read from the parquet in {place}")
    known = {name: value for entry in entries for name, value in reading.by_training(entry.reader).items()}
    if known:
        reporter.note(f"{what}: read as in training, with {in_words(known)}")
    for note in dict.fromkeys(note for entry in entries for note in entry.notes):
        reporter.note(note)


@dataclass
class Entry:
    """One file and the parquet file made of it; ``schema`` gives the types where its own will not do."""

    location: str
    options: Mapping[str, Any]
    folder: Path | None  # where it goes; the cache by default
    schema: pa.Schema | None = None

    @cached_property
    def reader(self) -> type[BatchReader]:
        found = _reader(self.location)
        assert found is not None
        _check_options(found, self.options)
        return found

    @cached_property
    def place(self) -> Path:
        folder = self.folder or _cache_folder(self.location)
        return folder / f"{self._stem}-{_digest(_state(self.location))}.parquet"

    @cached_property
    def _stem(self) -> str:
        """The same for every version of a file that is read in the same way."""
        types = None if self.schema is None else self.schema.to_string(show_schema_metadata=False)
        read = [self.reader.format, getattr(self.reader, "version", 1), sorted(self.options.items()), types]
        return f"{os.path.basename(self.location)[:100]}-{_digest([self.location, read])}"

    def make(self, reporter: Reporter) -> bool:
        """Convert the file, unless that is done; whether there was anything to do."""
        if self.place.exists():
            return False
        _refuse_libsvm(self.location, self.reader)
        state = _state(self.location)
        with staged_file(self.place, overwrite=True) as temporary:
            self._write(temporary, reporter)
            if _state(self.location) != state:
                raise DataError(f"{self.location} changed while it was read: try again once it is complete")
        self._remove_stale()
        return True

    def _write(self, temporary: Path, reporter: Reporter) -> None:
        """With the types of the first block; where a later value does not fit them, with those of all."""
        if not issubclass(self.reader, TextReader):
            write_parquet(self.reader(self.location, progress=_Progress(reporter), **self.options), temporary, reporter)
            return
        known: dict[str, Any] = {"blocks": 1} if self.schema is None else {"schema": self.schema}
        try:
            write_parquet(self.reader(self.location, progress=silent, **known, **self.options), temporary, reporter)
        except Unfit:
            if self.schema is not None:
                raise
            table = self.reader(self.location, progress=_Progress(reporter), **self.options)
            write_parquet(table, temporary, reporter)

    def _remove_stale(self) -> None:
        for path in glob.glob(f"{glob.escape(str(self.place.parent / self._stem))}-*.parquet"):
            if path != str(self.place):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    @cached_property
    def _footer(self) -> pa.Schema:
        import pyarrow.parquet as pq

        with reading(f"{self.place} (delete it to have it made again)"):
            return pq.read_schema(self.place)

    @property
    def kinds(self) -> pa.Schema:
        """Names and types, with what their metadata says of how they were read."""
        import pyarrow as pa

        return pa.schema([each.with_metadata(_ours(each.metadata)) for each in self._footer])

    @property
    def notes(self) -> list[str]:
        return json.loads((self._footer.metadata or {}).get(b"streamrf.notes", b"[]"))


def in_words(options: Mapping[str, Any]) -> str:
    """Options of readers as messages name them."""
    each = [(name, value) for name, values in options.items() for value in _listed(values)]
    return " ".join(f"`{name}={value!r}`" for name, value in each)


def _listed(values: Any) -> list[Any]:
    if isinstance(values, Mapping):
        return [f"{name}={value}" if name else value for name, value in values.items()]
    return [values] if isinstance(values, str) else list(values)


def _ours(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    return {key: value for key, value in (metadata or {}).items() if not key.startswith(b"PARQUET")} or None


def write_parquet(table: BatchReader, place: Path, reporter: Reporter) -> int:
    """All columns of a table as one parquet file, which says where they are from; the number of rows."""
    import pyarrow as pa

    from streamrf.data.columns.encoding import ABOUT
    from streamrf.data.columns.learning import check_unique
    from streamrf.data.readers.parquet import ORIGIN
    from streamrf.data.writers.tables import group_rows, storable, write_tables

    check_unique(table.schema.names, table.location)
    notes = table.notes()
    names = storable(table.schema, notes.append)
    about = {name: table.origin(name) for name in names}
    metadata = {
        ORIGIN: table.location.encode(),
        b"streamrf.notes": json.dumps(notes).encode(),
        ABOUT: json.dumps({name: text for name, text in about.items() if text}).encode(),
    }
    schema = pa.schema([table.schema.field(name) for name in names], metadata)
    batches = (pa.Table.from_batches([batch]) for batch in table.batches(names))
    progress = _Progress(reporter, table)
    rows = write_tables(place, schema, batches, group_rows(schema), progress)
    progress.finish()
    return rows


class _Progress:
    """Tells a reporter of rows that were read, where the file is so large that one would want to know.

    ``expected`` is about how many there will be; without it there is no progress bar, but a note now and then.
    """

    def __init__(self, reporter: Reporter, table: BatchReader | None = None) -> None:
        self._reporter, self._said = reporter, time.monotonic()
        guess = table.expected_rows if isinstance(table, TextReader) else 0
        self._expected = 0 if table is None else table.n_rows or guess
        self._shown = self._expected >= SHOWN_ROWS
        if self._shown:
            reporter.started("converting", self._expected, 0)

    def __call__(self, rows: int) -> None:
        if self._shown:
            self._expected = max(rows, self._expected)
            self._reporter.advanced(rows, None)
        elif time.monotonic() - self._said >= SAY_EVERY:
            self._said = time.monotonic()
            self._reporter.note(f"converting: {rows:,} rows so far")

    def finish(self) -> None:
        if self._shown:
            self._reporter.finished()


def _check_options(reader: type[BatchReader], options: Mapping[str, Any]) -> None:
    for name in sorted(set(options) - reader.options):
        owner = next(form for form, each in registered(SequentialReader).items() if name in each.options)
        raise InputError(f"`{name}` is about {owner} files, and there are {reader.format} files: leave it out")


def _refuse_libsvm(location: str, reader: type[BatchReader]) -> None:
    from streamrf.data.readers.libsvm import looks_like_libsvm

    if reader.format != "csv" or is_url(location):
        return
    with opened(location) as stream:
        if looks_like_libsvm(stream.readline(1 << 16)):
            raise DataError(
                f"{location} is LIBSVM text, which is converted first: streamrf convert {location}"
                f" {Path(location).name.partition('.')[0]}.zarr"
            )


def _state(location: str) -> str:
    """Another text for every version of a file."""
    if is_url(location):
        fs, path = filesystem(location)
        with reading(location):
            found = fs.info(path)
        return str([found.get(key) for key in ("size", "ETag", "mtime", "LastModified", "last_modified", "updated")])
    try:
        found = os.stat(location)
    except FileNotFoundError as error:
        raise StorageError(f"{location} does not exist") from error
    return f"{found.st_size} {found.st_mtime_ns}"


def _cache_folder(location: str) -> Path:
    """Beside the data, or the user's own."""
    candidates = [Path(os.path.dirname(location), FOLDER)] if not is_url(location) else []
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    candidates = [Path(os.environ[HOME])] if os.environ.get(HOME) else [*candidates, Path(base, "streamrf")]
    for folder in candidates:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                return folder
    raise StorageError(
        f"none of the cache folders can be written ({', '.join(map(str, candidates))}): set {HOME} to one that can, or"
        " `cache=False`"
    )


def _digest(what: object) -> str:
    return hashlib.sha256(json.dumps(what, default=str, sort_keys=True).encode()).hexdigest()[:12]
