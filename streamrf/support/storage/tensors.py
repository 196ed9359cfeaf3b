"""Named arrays in one file, in the published safetensors format: written and read without a second copy in memory.

8 bytes: length of the header, little-endian; the header: JSON ``{name: {dtype, shape, data_offsets}}``, padded with
spaces to a multiple of 8; then the raw little-endian arrays, in C order, with no gaps.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.storage import safejson
from streamrf.support.units import format_bytes

MAX_HEADER_BYTES = 8 * 2**20
PIECE_BYTES = 4 * 2**20  # hashed and written, or read and hashed, at a time: stays in a cache
_MAX_DIMENSIONS = 32
_TYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {(dtype.kind, dtype.itemsize): name for name, dtype in _TYPES.items()}

_DIGEST = re.compile(r"[0-9a-f]{64}")

Arrays = dict[str, np.ndarray]


class Writable(Protocol):
    def write(self, data: bytes | memoryview, /) -> object: ...


class Readable(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...


Writer = Callable[[Writable], object]


class FileRecord(NamedTuple):
    """The size and SHA-256 that a file must have."""

    n_bytes: int
    sha256: str

    def to_json(self) -> dict[str, object]:
        return {"bytes": self.n_bytes, "sha256": self.sha256}

    @classmethod
    def from_json(cls, entry: object, where: str) -> FileRecord:
        """The record that ``to_json`` described; anything else is a FileFormatError."""
        fields = entry if isinstance(entry, dict) else {}
        n_bytes, sha256 = fields.get("bytes"), fields.get("sha256")
        if type(n_bytes) is int and n_bytes >= 0 and isinstance(sha256, str) and _DIGEST.fullmatch(sha256):
            return cls(n_bytes, sha256)
        raise FileFormatError(f"{where} lacks the size and digest of a file; it is damaged.")


class HashingWriter:
    """A writer that does what another one does, and keeps the record of the bytes."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __call__(self, stream: Writable) -> None:
        self._stream, self._sha, self._n_bytes = stream, hashlib.sha256(), 0
        self._writer(self)

    def write(self, data: bytes | memoryview) -> int:
        self._sha.update(data)
        self._stream.write(data)
        self._n_bytes += len(data)
        return len(data)

    @property
    def record(self) -> FileRecord:
        return FileRecord(self._n_bytes, self._sha.hexdigest())


class HashingReader:
    """Reads exact numbers of bytes of the file ``where``, and keeps the SHA-256 of all that was read."""

    def __init__(self, stream: Readable, where: str) -> None:
        self._stream = stream
        self._sha = hashlib.sha256()
        self.where = where

    def fill(self, buffer: memoryview) -> None:
        for begin in range(0, len(buffer), PIECE_BYTES):
            piece = buffer[begin : begin + PIECE_BYTES]
            self._fill_piece(piece)
            self._sha.update(piece)

    def _fill_piece(self, piece: memoryview) -> None:
        done = 0
        while done < len(piece):
            got = self._stream.readinto(piece[done:])
            if not got:
                raise FileFormatError(f"{self.where} ended while it was read; it is damaged or being changed.")
            done += got

    def take(self, count: int) -> bytes:
        buffer = bytearray(count)
        self.fill(memoryview(buffer))
        return bytes(buffer)

    def check(self, record: FileRecord) -> None:
        """FileFormatError unless all that was read has the SHA-256 of the record."""
        if (found := self._sha.hexdigest()) != record.sha256:
            raise FileFormatError(
                f"{self.where} has the SHA-256 {found} and should have {record.sha256}: it is damaged or was changed."
            )


@dataclass(frozen=True)
class TensorInfo:
    """Where one array lies, counted from the end of the header."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def total_bytes(arrays: Arrays) -> int:
    """About how many bytes a file of these arrays takes."""
    return sum(array.nbytes for array in arrays.values()) + 200 * len(arrays) + 64


def check_writable(arrays: Arrays, where: str) -> None:
    """InputError for an array of a type that cannot be stored."""
    for name, array in arrays.items():
        if not isinstance(name, str) or name in ("", "__metadata__"):
            raise InputError(f"{where}: {name!r} cannot be the name of an array.")
        if (array.dtype.kind, array.dtype.itemsize) not in _NAMES:
            allowed = ", ".join(str(dtype) for dtype in _TYPES.values())
            raise InputError(f"{where}: array {name!r} has type {array.dtype}; it must be one of {allowed}.")


def write_tensors(stream: Writable, arrays: Arrays, where: str) -> None:
    """Write the file in pieces. The same arrays always give the same bytes."""
    check_writable(arrays, where)
    # Wide types first: every array then starts at a multiple of its item size, as readers that map the file want.
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    header = _header(ordered, where)
    stream.write(len(header).to_bytes(8, "little"))
    stream.write(header)
    for _, array in ordered:
        for piece in _pieces(array):
            little_endian = piece.astype(piece.dtype.newbyteorder("<"), copy=False)
            stream.write(little_endian.reshape(-1).view(np.uint8).data)


def _header(ordered: list[tuple[str, np.ndarray]], where: str) -> bytes:
    entries, begin = {}, 0
    for name, array in ordered:
        end = begin + array.nbytes
        dtype = _NAMES[array.dtype.kind, array.dtype.itemsize]
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    header = text + b" " * (-len(text) % 8)
    if len(header) > MAX_HEADER_BYTES:
        raise InputError(f"{where}: {len(ordered)} arrays need a header above {format_bytes(MAX_HEADER_BYTES)}.")
    return header


def _pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Parts of at most PIECE_BYTES, each contiguous in C order, which together are the array in C order."""
    if array.nbytes <= PIECE_BYTES:
        yield np.ascontiguousarray(array)
        return
    if array.flags.c_contiguous:
        array = array.reshape(-1)
    rows = PIECE_BYTES // (array.nbytes // len(array))
    for start in range(0, len(array), max(1, rows)):
        part = array[start : start + rows] if rows else array[start]
        yield from _pieces(part)


def read_header(reader: HashingReader, n_bytes: int) -> list[TensorInfo]:
    """The arrays of a file of ``n_bytes``, in file order. Every claim is checked against that size."""
    if n_bytes < 8:
        raise FileFormatError(f"{reader.where} has {n_bytes} bytes, too few for an array file; it is damaged.")
    length = int.from_bytes(reader.take(8), "little")
    if length > min(MAX_HEADER_BYTES, n_bytes - 8):
        raise FileFormatError(
            f"{reader.where} claims a header of {length} bytes; it has {n_bytes} bytes, and at most "
            f"{MAX_HEADER_BYTES} are allowed: it is damaged or no array file."
        )
    entries = safejson.decode(reader.take(length), f"the header of {reader.where}")
    infos = sorted(_infos(entries, reader.where), key=lambda info: (info.begin, info.end))
    _check_no_gaps(infos, n_bytes - 8 - length, reader.where)
    return infos


def _infos(entries: object, where: str) -> list[TensorInfo]:
    if not isinstance(entries, dict):
        raise FileFormatError(f"{where} has no table of arrays; it is damaged.")
    return [_info(name, entry, where) for name, entry in entries.items() if name != "__metadata__"]


def _info(name: str, entry: object, where: str) -> TensorInfo:
    where = f"{where}, array {name!r}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise FileFormatError(f"{where}: dtype, shape and data_offsets are needed; the file is damaged.")
    dtype = _TYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise FileFormatError(f"{where} has type {entry['dtype']!r}, which is not one of {', '.join(_TYPES)}.")
    shape, offsets = _whole_numbers(entry["shape"], where), _whole_numbers(entry["data_offsets"], where)
    if len(offsets) != 2 or len(shape) > _MAX_DIMENSIONS or _extent(shape, dtype) >= 2**63:
        raise FileFormatError(f"{where} has an impossible shape or place; the file is damaged.")
    needed, begin, end = math.prod(shape) * dtype.itemsize, *offsets
    if end - begin != needed:
        raise FileFormatError(f"{where} of shape {shape} needs {needed} bytes and has {end - begin}.")
    return TensorInfo(name, dtype, shape, begin, end)


def _whole_numbers(value: object, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 2**63 for n in value):
        raise FileFormatError(f"{where} has a shape or place that is not whole numbers; the file is damaged.")
    return tuple(value)


def _extent(shape: tuple[int, ...], dtype: np.dtype) -> int:
    """Bytes if no side were 0: numpy refuses a shape like (0, 2^62, 2^62), though it is empty."""
    return math.prod(max(1, side) for side in shape) * dtype.itemsize


def _check_no_gaps(infos: list[TensorInfo], data_bytes: int, where: str) -> None:
    position = 0
    for info in infos:
        if info.begin != position:
            raise FileFormatError(f"{where}, array {info.name!r} starts at byte {info.begin}, not at {position}.")
        position = info.end
    if position != data_bytes:
        raise FileFormatError(f"{where} should hold {position} bytes of arrays and holds {data_bytes}; it is damaged.")


def read_tensors(reader: HashingReader, n_bytes: int) -> Arrays:
    """All arrays of a file of ``n_bytes``. Memory is allocated only after the header was checked."""
    return {info.name: _read_array(reader, info) for info in read_header(reader, n_bytes)}


def read_checked(reader: HashingReader, record: FileRecord) -> Arrays:
    """All arrays of a file that must match its record."""
    arrays = read_tensors(reader, record.n_bytes)
    reader.check(record)
    return arrays


def _read_array(reader: HashingReader, info: TensorInfo) -> np.ndarray:
    array = np.empty(info.shape, info.dtype)
    raw = array.reshape(-1).view(np.uint8)
    reader.fill(raw.data)
    if info.dtype == np.bool_ and raw.size and raw.max() > 1:
        raise FileFormatError(f"{reader.where}, array {info.name!r} holds bytes that are neither true nor false.")
    return array
