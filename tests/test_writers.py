"""Writers: what is written reads back equal, and an output is whole or not there."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from writers_conformance import (
    COLUMNS,
    ONE,
    N,
    SharedWriterConformance,
    Table,
    Types,
    WriterConformance,
    make_table,
    rows_of,
)

from streamrf.data.open import open_source
from streamrf.data.source import Span
from streamrf.data.writers import endings, open_part, open_shared_writer, open_writer
from streamrf.data.writers import parquet as parquet_module
from streamrf.data.writers import zarr as zarr_module
from streamrf.data.writers.base import RowBuffer
from streamrf.data.writers.encoded import STREAMS
from streamrf.support.errors import InputError, StorageError

ENDINGS = (".zarr", ".parquet", ".npy", ".csv", ".jsonl", ".arrow")
TWO: Types = [("p_a", "f8"), ("p_b", "f8")]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks and row groups in few rows."""
    monkeypatch.setattr(zarr_module, "CHUNK_ROWS", 32)
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 32)


class TestZarr(WriterConformance):
    ending, ordered = ".zarr", False

    def read(self, path: Path, columns: Types) -> Table:
        group = zarr.open_group(str(path), mode="r")
        return {name: group[name][:].astype(object).astype(dtype) for name, dtype in columns}


class TestNpy(WriterConformance):
    ending, columns, ordered = ".npy", TWO, False

    def read(self, path: Path, columns: Types) -> Table:
        values = np.load(path).reshape(N, -1)
        return {name: values[:, j] for j, (name, _) in enumerate(columns)}


class TestParquet(WriterConformance):
    ending = ".parquet"

    def read(self, path: Path, columns: Types) -> Table:
        return arrow_columns(pq.read_table(path), columns)


class TestArrow(WriterConformance):
    ending = ".arrow"

    def read(self, path: Path, columns: Types) -> Table:
        return arrow_columns(pa.ipc.open_stream(path.read_bytes()).read_all(), columns)


class TestJsonLines(WriterConformance):
    ending = ".jsonl"

    def read(self, path: Path, columns: Types) -> Table:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert all(list(row) == [name for name, _ in columns] for row in rows)
        return {name: np.array([row[name] for row in rows], dtype) for name, dtype in columns}


class TestCsv(WriterConformance):
    ending = ".csv"

    def read(self, path: Path, columns: Types) -> Table:
        with open(path, newline="", encoding="utf-8") as file:
            header, *lines = csv.reader(file)
        assert header == [name for name, _ in columns]
        return {name: parse([line[j] for line in lines], dtype) for j, (name, dtype) in enumerate(columns)}


class TestSharedZarr(SharedWriterConformance, TestZarr):
    ordered, step = False, 32


class TestSharedNpy(SharedWriterConformance, TestNpy):
    ordered = False


class TestSharedParquet(SharedWriterConformance, TestParquet):
    ordered = False


def arrow_columns(table: pa.Table, columns: Types) -> Table:
    assert table.column_names == [name for name, _ in columns]
    return {name: np.array(table.column(name).to_pylist(), dtype) for name, dtype in columns}


def parse(texts: list[str], dtype: Any) -> np.ndarray:
    if np.dtype(dtype).kind == "b":
        return np.array([text == "true" for text in texts])
    return np.array(texts).astype(dtype)


def test_every_ending_is_tested() -> None:
    assert set(endings()) == set(ENDINGS)
    assert endings("shared") == (".npy", ".parquet", ".zarr")
    assert endings("remote") == (".parquet",)


@pytest.mark.parametrize("form", ["csv", "jsonl", "arrow"])
def test_a_stream_gets_what_a_file_gets_and_is_flushed(tmp_path: Path, form: str) -> None:
    class Pipe(io.BytesIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed = self.tell()

    table, pipe = make_table(COLUMNS), Pipe()
    with STREAMS[form](pipe, COLUMNS) as out, open_writer(tmp_path / f"o.{form}", N, COLUMNS) as writer:
        for start in range(0, N, 30):
            out.write(start, rows_of(table, start, start + 30))
            writer.write(start, rows_of(table, start, start + 30))
            assert pipe.flushed == pipe.tell() > 0
    assert pipe.getvalue() == (tmp_path / f"o.{form}").read_bytes()


@pytest.mark.parametrize("ending", [".zarr", ".parquet", ".npy"])
def test_predictions_are_data_again(tmp_path: Path, ending: str) -> None:
    table = make_table(ONE)
    with open_writer(tmp_path / f"X{ending}", N, ONE) as writer:
        writer.write(0, table)
    source = open_source(tmp_path / f"X{ending}", x="prediction" if ending == ".zarr" else "X", need_targets=False)
    assert np.array_equal(source.read(Span(0, N)).X[:, 0], table["prediction"])


def test_npy_shapes(tmp_path: Path) -> None:
    with open_writer(tmp_path / "one.npy", N, ONE) as writer:
        writer.write(0, make_table(ONE))
    assert np.load(tmp_path / "one.npy").shape == (N,)
    with pytest.raises(InputError, match=r"different types.*\.parquet"):
        open_writer(tmp_path / "mixed.npy", N, COLUMNS)
    with pytest.raises(InputError, match="known width"):
        open_writer(tmp_path / "text.npy", N, [("label", np.dtype("U"))])
    assert os.listdir(tmp_path) == ["one.npy"]


@pytest.mark.parametrize(
    ("start", "block", "words"),
    [
        (0, {"other": np.zeros(3)}, "lacks column 'prediction'"),
        (0, {"prediction": np.zeros(3), "more": np.zeros(3)}, "needs the columns prediction"),
        (-1, {"prediction": np.zeros(3)}, "not within the 100 rows"),
        (98, {"prediction": np.zeros(3)}, "98:101"),
        (0, {"prediction": np.zeros(3, complex)}, "complex128"),
        (0, {"prediction": np.zeros((3, 1))}, r"\(3, 1\)"),
    ],
)
def test_blocks_that_do_not_fit(tmp_path: Path, start: int, block: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(InputError, match=words), open_writer(tmp_path / "o.npy", N, ONE) as writer:
        writer.write(start, block)


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.arrow, \.csv, \.jsonl, \.npy, \.parquet, \.zarr"):
        open_writer(tmp_path / "out.txt", N, ONE)
    with pytest.raises(InputError, match="local"):
        open_writer("s3://bucket/out.parquet", N, ONE)
    with pytest.raises(InputError, match="different names"):
        open_writer(tmp_path / "out.csv", N, [*ONE, *ONE])


FULL_DISK = """
import resource, signal, sys, os, errno
import numpy as np
from streamrf.support.errors import StorageError
from streamrf.data.writers import open_writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = sys.argv[1]
rng = np.random.default_rng(0)
for ending in (".zarr", ".parquet", ".npy", ".csv"):
    writer = open_writer(os.path.join(folder, "out" + ending), 200_000, [("p", np.dtype("f8"))])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        with writer:
            for start in range(0, 200_000, 10_000):
                writer.write(start, {"p": rng.normal(size=10_000)})
        print(ending, "was written")
    except StorageError as error:
        print(ending, error.errno == errno.EFBIG, os.listdir(folder))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


KILLED = """
import os, signal, sys
from streamrf.data.writers import open_writer
writers = [open_writer(f"{sys.argv[1]}/out{ending}", 10, [("p", "f8")]).__enter__() for ending in sys.argv[2:]]
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_with_the_next_output(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), *ENDINGS], check=False)
    assert run.returncode != 0
    left = os.listdir(tmp_path)
    assert len(left) == len(ENDINGS)
    assert all(name.startswith(".") for name in left)
    with open_writer(tmp_path / "new.npy", N, ONE) as writer:
        writer.write(0, make_table(ONE))
    assert os.listdir(tmp_path) == ["new.npy"]


def test_half_a_part_of_a_lost_worker_is_not_in_the_output(tmp_path: Path) -> None:
    for overwrite in (False, True):  # with a stray file in it, it would not be replaced
        with open_shared_writer(tmp_path / "out.parquet", N, ONE, overwrite=overwrite) as writer:
            with open_part(writer.spec(), [Span(0, N)]) as part:
                part.write(0, make_table(ONE))
            writer.wrote([Span(0, N)])
            Path(writer.spec()["place"], "part-000.parquet.0123abcd.tmp").write_bytes(b"PAR1")
        assert os.listdir(tmp_path / "out.parquet") == ["part-000.parquet"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs file size limits")
def test_a_file_system_that_refuses_is_a_storage_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files is the one refusal a test can have from a real system."""
    run = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.stdout.splitlines() == [f"{ending} True []" for ending in (".zarr", ".parquet", ".npy", ".csv")], (
        run.stderr
    )


def test_no_space_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(StorageError, match="no space"), open_writer(tmp_path / "out.npy", N, ONE):
        raise AssertionError("not reached: the space is taken on opening")
    assert os.listdir(tmp_path) == []


@given(
    blocks=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=12), step=st.integers(1, 15)
)
def test_row_buffer_loses_nothing_and_cuts_at_borders(blocks: list[tuple[int, int]], step: int) -> None:
    buffer, runs, expected, held = RowBuffer(step), [], [], 0
    for start, count in blocks:
        span = Span(start, start + count)
        expected += range(*span)
        for run, values in buffer.add(start, {"row": np.arange(*span)}):
            runs.append((run, values["row"]))
        held = max(held, sum(len(piece["row"]) for piece in buffer._pieces))
    runs += [(run, values["row"]) for run, values in buffer.drain()]
    assert [row for run, values in runs for row in values] == expected
    assert all(np.array_equal(values, np.arange(*run)) for run, values in runs)
    assert held < step


def test_importing_writers_imports_no_storage_library() -> None:
    code = "import sys, streamrf.data.writers as writers; writers.endings(); "
    code += "print(sorted({'zarr', 'pyarrow', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
