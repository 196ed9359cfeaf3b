"""An archive is a directory of ``NAME.json`` documents and ``NAME.safetensors`` array files: models and statistics.

``archive.json`` names every file with its size and SHA-256, so that a damaged, truncated or exchanged file is found and
named. Nothing in an archive is ever run: there is no pickle, and no name of anything to import.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from streamrf.support import __version__
from streamrf.support.errors import ExistsError, FileFormatError, InputError, MismatchError
from streamrf.support.storage import safejson
from streamrf.support.storage.files import (
    AnyPath,
    atomic_directory,
    check_free_space,
    check_place,
    refuse_existing,
    storage_errors,
    write_durably,
)
from streamrf.support.storage.safejson import JSON
from streamrf.support.storage.tensors import (
    Arrays,
    FileRecord,
    HashingReader,
    HashingWriter,
    TensorInfo,
    Writer,
    check_writable,
    read_checked,
    read_header,
    total_bytes,
    write_tensors,
)

PROTOCOL = 1
MANIFEST = "archive.json"
_FORMAT = "streamrf-archive"
_MAX_FILES = 1000
_MAX_MANIFEST = 2**20  # bytes: far more than so many files take
# Lower case, so that no two names fall together where the file system does not tell A from a.
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/")  # also where a Path has made one slash of two
_FILE_NAME = re.compile(rf"({_NAME.pattern})\.(json|safetensors)")


@dataclass(frozen=True)
class Archive:
    """An archive that was opened: its documents are read and checked, its arrays are read when asked for."""

    path: Path
    kind: str
    protocol: int
    streamrf_version: str
    documents: dict[str, JSON]
    files: dict[str, FileRecord]

    def document(self, name: str) -> JSON:
        """One document. FileFormatError if the archive has none of that name."""
        if name not in self.documents:
            raise FileFormatError(f"{self.path} has no {name}.json; it is not a complete {self.kind} archive.")
        return self.documents[name]

    def has_arrays(self, name: str) -> bool:
        return f"{name}.safetensors" in self.files

    def arrays(self, name: str) -> Arrays:
        """Read one array file, checking its digest on the way; the arrays are yours to change."""
        with self._opened_arrays(name) as (reader, record):
            return read_checked(reader, record)

    def array_infos(self, name: str) -> dict[str, TensorInfo]:
        """Types and shapes of one array file, without reading the arrays."""
        with self._opened_arrays(name) as (reader, record):
            return {info.name: info for info in read_header(reader, record.n_bytes)}

    @contextmanager
    def _opened_arrays(self, name: str) -> Iterator[tuple[HashingReader, FileRecord]]:
        if not self.has_arrays(name):
            raise FileFormatError(f"{self.path} has no {name}.safetensors; it is not a complete {self.kind} archive.")
        record = self.files[f"{name}.safetensors"]
        with _opened(self.path, f"{name}.safetensors", record) as reader:
            yield reader, record


def write_archive(
    path: AnyPath, *, kind: str, documents: Mapping[str, object], arrays: Mapping[str, Arrays], overwrite: bool = False
) -> None:
    """Write an archive that appears whole or not at all. Large arrays are streamed, never copied as a whole."""
    check_target(path, overwrite)
    _check_content(kind, documents, arrays)
    encoded = {f"{name}.json": safejson.encode(document, f"{name}.json") for name, document in documents.items()}
    check_free_space(path, sum(map(len, encoded.values())) + sum(map(total_bytes, arrays.values())))
    with atomic_directory(path, overwrite=overwrite) as directory, storage_errors(f"write {path}", path):
        records = {name: _write(directory / name, _bytes_writer(data)) for name, data in encoded.items()}
        for name, members in arrays.items():
            file_name = f"{name}.safetensors"
            writer = partial(write_tensors, arrays=members, where=file_name)
            records[file_name] = _write(directory / file_name, writer)
        _write(directory / MANIFEST, _bytes_writer(_manifest(kind, records)))


def _manifest(kind: str, records: dict[str, FileRecord]) -> bytes:
    files = {name: record.to_json() for name, record in records.items()}
    document = {"format": _FORMAT, "protocol": PROTOCOL, "kind": kind, "streamrf": __version__, "files": files}
    return safejson.seal(document, MANIFEST)


def _write(path: Path, writer: Writer) -> FileRecord:
    hashing = HashingWriter(writer)
    write_durably(path, hashing)
    return hashing.record


def _bytes_writer(data: bytes) -> Writer:
    return lambda stream: stream.write(data)


def _check_content(kind: str, documents: Mapping[str, object], arrays: Mapping[str, Arrays]) -> None:
    for name in [kind, *documents, *arrays]:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name == "archive":
            raise InputError(f"{name!r} cannot name a part of an archive; use lower-case letters, digits, - and _.")
    for name, members in arrays.items():
        check_writable(members, f"{name}.safetensors")
    if len(documents) + len(arrays) > _MAX_FILES:
        raise InputError(f"An archive has at most {_MAX_FILES} files, not {len(documents) + len(arrays)}.")


def check_target(path: AnyPath, overwrite: bool) -> None:
    """ExistsError or StorageError unless an archive may be written at ``path``. Ask before a long run.

    ``overwrite`` replaces an archive and nothing else: a directory with other files in it is never touched.
    """
    target = Path(path)
    if address := _ADDRESS.match(str(path)):
        raise InputError(f"models and statistics are written to local disks only, not to a {address[1]}:// address.")
    with storage_errors(f"read {path}", path):
        check_place(target)
        if not os.path.lexists(target):
            return
        if not overwrite:
            refuse_existing(target)
        foreign = _foreign_entry(target)
    if foreign is not None:
        raise ExistsError(f"{path} exists and is not a streamrf archive ({foreign}), so it cannot be overwritten.")


def _foreign_entry(target: Path) -> str | None:
    """Why a path is neither an archive alone nor an empty directory; None if it is one of them."""
    if not target.is_dir():
        return "it is not a directory"
    with os.scandir(target) as entries:
        kinds = {entry.name: entry.is_file() for entry in entries}
    for name, is_file in kinds.items():
        if not (is_file and _FILE_NAME.fullmatch(name)):
            return f"it holds {name}"
    return None if not kinds or MANIFEST in kinds else f"it has no {MANIFEST}"


def is_archive(path: AnyPath) -> bool:
    """Whether ``path`` holds something that claims to be an archive."""
    return os.path.isfile(Path(path) / MANIFEST)


def read_archive(path: AnyPath, *, kind: str | None = None) -> Archive:
    """Open an archive: read its documents, check all sizes, and leave the arrays for later.

    FileFormatError: damaged, or of a newer protocol. MismatchError: not of this ``kind``. StorageError: not there.
    """
    directory = Path(path)
    with storage_errors(f"open {path}", path):
        os.stat(directory)
    manifest = _read_manifest(directory)
    if kind is not None and manifest["kind"] != kind:
        raise MismatchError(f"{path} must be a {kind} archive, not a {manifest['kind']} archive.")
    files = _file_records(manifest, directory)
    for name, record in files.items():
        _check_size(directory, name, record)
    documents = {
        name.removesuffix(".json"): _read_document(directory, name, record)
        for name, record in files.items()
        if name.endswith(".json")
    }
    return Archive(directory, manifest["kind"], manifest["protocol"], manifest["streamrf"], documents, files)


def _read_manifest(directory: Path) -> JSON:
    where = str(directory / MANIFEST)
    with storage_errors(f"read {where}", where):
        n_bytes = _regular_size(directory, MANIFEST)
    if n_bytes > _MAX_MANIFEST:
        raise FileFormatError(f"{where} has {n_bytes} bytes; at most {_MAX_MANIFEST} are allowed.")
    with storage_errors(f"read {where}", where), open(where, "rb") as stream:
        manifest = safejson.unseal(stream.read(n_bytes), where, form=_FORMAT, newest=PROTOCOL)
    if not all(isinstance(manifest.get(key), str) for key in ("kind", "streamrf")):
        raise FileFormatError(f"{where} does not say what kind of archive this is; it is damaged.")
    return manifest


def _file_records(manifest: JSON, directory: Path) -> dict[str, FileRecord]:
    files = manifest.get("files")
    if not isinstance(files, dict) or len(files) > _MAX_FILES:
        raise FileFormatError(f"{directory / MANIFEST} has no list of files; it is damaged.")
    return {name: _file_record(name, entry, directory) for name, entry in files.items()}


def _file_record(name: str, entry: object, directory: Path) -> FileRecord:
    if name == MANIFEST or not _FILE_NAME.fullmatch(name):
        raise FileFormatError(f"{directory / MANIFEST} lists {name!r}, which is not a valid entry; it is damaged.")
    return FileRecord.from_json(entry, f"{directory / MANIFEST}, {name!r},")


def _regular_size(directory: Path, name: str) -> int:
    """Size of a plain file inside the archive. A link that leads out of it is refused."""
    path = directory / name
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise FileFormatError(f"{directory} is not a complete streamrf archive: it has no {name}.") from None
    if not stat.S_ISREG(status.st_mode) or Path(os.path.realpath(path)).parent != Path(os.path.realpath(directory)):
        raise FileFormatError(f"{path} is not a plain file inside the archive, so it is not opened.")
    return status.st_size


def _check_size(directory: Path, name: str, record: FileRecord) -> None:
    with storage_errors(f"read {directory / name}", directory):
        n_bytes = _regular_size(directory, name)
    if n_bytes != record.n_bytes:
        raise FileFormatError(
            f"{directory / name} has {n_bytes} bytes and should have {record.n_bytes}: it is damaged or was changed."
        )


@contextmanager
def _opened(directory: Path, name: str, record: FileRecord) -> Iterator[HashingReader]:
    _check_size(directory, name, record)  # again: the archive may have been replaced since it was opened
    path = directory / name
    with storage_errors(f"read {path}", path), open(path, "rb", buffering=0) as stream:
        yield HashingReader(stream, str(path))


def _read_document(directory: Path, name: str, record: FileRecord) -> JSON:
    where = str(directory / name)
    if record.n_bytes > safejson.MAX_BYTES:
        raise FileFormatError(f"{where} has {record.n_bytes} bytes; at most {safejson.MAX_BYTES} are allowed.")
    with _opened(directory, name, record) as reader:
        data = reader.take(record.n_bytes)
    reader.check(record)
    return safejson.decode(data, where)
