"""Sinks: what is written reads back equal, and an output is whole or not there."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from streamrf.data.open import open_source
from streamrf.data.source import Span
from streamrf.data.writers import ENDINGS, UNKNOWN, Sink, open_sink
from streamrf.data.writers import parquet as parquet_module
from streamrf.data.writers import zarr as zarr_module
from streamrf.data.writers.base import RowBuffer
from streamrf.data.writers.encoded import StreamSink
from streamrf.data.writers.parts import open_parts, write_part
from streamrf.support.errors import ExistsError, InputError, StorageError

N = 100
COLUMNS: list[tuple[str, Any]] = [("label", "U12"), ("score", "f4"), ("chance", "f8"), ("code", "i8"), ("sure", "?")]
ONE: list[tuple[str, Any]] = [("prediction", np.dtype("f8"))]


def make_table(columns: list[tuple[str, Any]], n: int = N) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.array(["yes", "no", 'a "b", c', "ä\nö"])
    made: dict[str, Callable[[], np.ndarray]] = {
        "U": lambda: rng.choice(labels, n),
        "f": lambda: rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n),
        "i": lambda: rng.integers(-(2**60), 2**60, n),
        "b": lambda: rng.normal(size=n) > 0,
    }
    return {name: made[np.dtype(dtype).kind]().astype(dtype) for name, dtype in columns}


def rows_of(table: dict[str, np.ndarray], start: int, stop: int) -> dict[str, np.ndarray]:
    return {name: values[start:stop] for name, values in table.items()}


def fill(sink: Sink, table: dict[str, np.ndarray], *spans: tuple[int, int], then: Callable[[], Any] = int) -> None:
    with sink:
        for start, stop in spans:
            sink.write(start, rows_of(table, start, stop))
        then()


def interrupt() -> None:
    raise KeyboardInterrupt


def read_back(path: Path, columns: list[tuple[str, Any]]) -> dict[str, np.ndarray]:
    if path.suffix == ".zarr":
        group = zarr.open_group(str(path), mode="r")
        return {name: group[name][:].astype(object).astype(dtype) for name, dtype in columns}
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        assert table.column_names == [name for name, _ in columns]
        return {name: np.array(table.column(name).to_pylist(), dtype) for name, dtype in columns}
    if path.suffix == ".npy":
        values = np.load(path).reshape(N, -1)
        return {name: values[:, j] for j, (name, _) in enumerate(columns)}
    if path.suffix == ".arrow":
        table = pa.ipc.open_stream(path.read_bytes()).read_all()
        return {name: np.array(table.column(name).to_pylist(), dtype) for name, dtype in columns}
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert all(list(row) == [name for name, _ in columns] for row in rows)
        return {name: np.array([row[name] for row in rows], dtype) for name, dtype in columns}
    with open(path, newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == [name for name, _ in columns]
    return {name: parse([line[j] for line in lines], dtype) for j, (name, dtype) in enumerate(columns)}


def parse(texts: list[str], dtype: Any) -> np.ndarray:
    if np.dtype(dtype).kind == "b":
        return np.array([text == "true" for text in texts])
    return np.array(texts).astype(dtype)


def columns_for(ending: str) -> list[tuple[str, Any]]:
    return [("p_a", "f8"), ("p_b", "f8")] if ending == ".npy" else COLUMNS


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several chunks and row groups in few rows."""
    monkeypatch.setattr(zarr_module, "CHUNK_ROWS", 32)
    monkeypatch.setattr(parquet_module, "GROUP_ROWS", 32)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("step", [1, 7, 32, 50, N])
def test_what_is_written_reads_back_equal(tmp_path: Path, ending: str, step: int) -> None:
    columns = columns_for(ending)
    table = make_table(columns)
    path = tmp_path / f"out{ending}"
    with open_sink(path, N, columns) as sink:
        assert not path.exists()
        for start in range(0, N, step):
            sink.write(start, rows_of(table, start, start + step))
    found = read_back(path, columns)
    for name, dtype in columns:
        assert found[name].dtype == np.dtype(dtype)
        assert np.array_equal(found[name], table[name]), name
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", [".zarr", ".npy"])
def test_any_order(tmp_path: Path, ending: str) -> None:
    columns = columns_for(ending)
    table = make_table(columns)
    starts = np.random.default_rng(3).permutation(np.arange(0, N, 9)).tolist()
    with open_sink(tmp_path / f"out{ending}", N, columns) as sink:
        assert not sink.ordered
        for start in starts:
            sink.write(start, rows_of(table, start, start + 9))
    found = read_back(tmp_path / f"out{ending}", columns)
    assert all(np.array_equal(found[name], table[name]) for name in table)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".jsonl", ".arrow"])
def test_the_number_of_rows_need_not_be_known(tmp_path: Path, ending: str) -> None:
    table = make_table(COLUMNS)
    with open_sink(tmp_path / f"out{ending}", UNKNOWN, COLUMNS) as sink:
        for start in range(0, N, 9):
            sink.write(start, rows_of(table, start, start + 9))
    found = read_back(tmp_path / f"out{ending}", COLUMNS)
    assert all(np.array_equal(found[name], table[name]) for name in table)


@pytest.mark.parametrize("ending", [".zarr", ".npy"])
def test_formats_that_need_the_number_of_rows_say_so(tmp_path: Path, ending: str) -> None:
    with pytest.raises(InputError, match="number of rows beforehand"):
        open_sink(tmp_path / f"out{ending}", UNKNOWN, ONE)


@pytest.mark.parametrize("form", ["csv", "jsonl", "arrow"])
def test_a_stream_gets_what_a_file_gets_and_is_flushed(tmp_path: Path, form: str) -> None:
    class Pipe(io.BytesIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed = self.tell()

    table, pipe = make_table(COLUMNS), Pipe()
    with StreamSink(pipe, form, COLUMNS) as out, open_sink(tmp_path / f"o.{form}", N, COLUMNS) as sink:
        for start in range(0, N, 30):
            out.write(start, rows_of(table, start, start + 30))
            sink.write(start, rows_of(table, start, start + 30))
            assert pipe.flushed == pipe.tell() > 0
    assert pipe.getvalue() == (tmp_path / f"o.{form}").read_bytes()


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_row_order_is_required_where_the_format_does(tmp_path: Path, ending: str) -> None:
    sink = open_sink(tmp_path / f"o{ending}", N, COLUMNS)
    assert sink.ordered
    with pytest.raises(InputError, match="row 10 comes next, not 20"):
        fill(sink, make_table(COLUMNS), (0, 10), (20, 30))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_labels(tmp_path: Path, ending: str) -> None:
    table = make_table([("label", "U8")])
    with open_sink(tmp_path / f"out{ending}", N, [("label", np.dtype("U8"))]) as sink:
        sink.write(0, table)
    assert np.array_equal(read_back(tmp_path / f"out{ending}", [("label", "U8")])["label"], table["label"])


@pytest.mark.parametrize("ending", [".zarr", ".parquet", ".npy"])
def test_predictions_are_data_again(tmp_path: Path, ending: str) -> None:
    table = make_table(ONE)
    with open_sink(tmp_path / f"X{ending}", N, ONE) as sink:
        sink.write(0, table)
    source = open_source(tmp_path / f"X{ending}", x="prediction" if ending == ".zarr" else "X", need_targets=False)
    assert np.array_equal(source.read(Span(0, N)).X[:, 0], table["prediction"])


def test_npy_shapes(tmp_path: Path) -> None:
    with open_sink(tmp_path / "one.npy", N, ONE) as sink:
        sink.write(0, make_table(ONE))
    assert np.load(tmp_path / "one.npy").shape == (N,)
    with pytest.raises(InputError, match=r"different types.*\.parquet"):
        open_sink(tmp_path / "mixed.npy", N, COLUMNS)
    with pytest.raises(InputError, match="known width"):
        open_sink(tmp_path / "text.npy", N, [("label", np.dtype("U"))])
    assert os.listdir(tmp_path) == ["one.npy"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("when", ["at once", "later"])
def test_an_error_leaves_nothing_behind(tmp_path: Path, ending: str, when: str) -> None:
    columns = columns_for(ending)
    sink = open_sink(tmp_path / f"out{ending}", N, columns)
    with pytest.raises(KeyboardInterrupt):
        fill(sink, make_table(columns), *([(0, 40)] if when == "later" else []), then=interrupt)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_existing_output(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out{ending}"
    old, new = make_table(ONE), {"prediction": np.arange(N, dtype=float)}
    with open_sink(path, N, ONE) as sink:
        sink.write(0, old)
    with pytest.raises(ExistsError, match="already exists"):
        open_sink(path, N, ONE)
    with pytest.raises(ZeroDivisionError), open_sink(path, N, ONE, overwrite=True):
        raise ZeroDivisionError
    assert np.array_equal(read_back(path, ONE)["prediction"], old["prediction"])
    with open_sink(path, N, ONE, overwrite=True) as sink:
        sink.write(0, new)
    assert np.array_equal(read_back(path, ONE)["prediction"], new["prediction"])
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_output_that_appears_meanwhile_is_kept(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"out{ending}"
    sink = open_sink(path, N, ONE)
    with pytest.raises(ExistsError):
        fill(sink, make_table(ONE), (0, N), then=lambda: path.write_text("mine"))
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == [path.name]


def test_a_directory_that_is_no_store_is_never_replaced(tmp_path: Path) -> None:
    for ending in ENDINGS:
        (tmp_path / f"d{ending}").mkdir()
        (tmp_path / f"d{ending}" / "thesis.txt").touch()
        with pytest.raises(ExistsError, match="not replaced"):
            open_sink(tmp_path / f"d{ending}", N, ONE, overwrite=True)


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_row_must_be_written_once(tmp_path: Path, ending: str) -> None:
    table = make_table(ONE)
    with (
        pytest.raises(InputError, match=r"100 rows once, but row 60"),
        open_sink(tmp_path / f"o{ending}", N, ONE) as sink,
    ):
        sink.write(0, rows_of(table, 0, 60))
    if not sink.ordered:
        with pytest.raises(InputError, match="row 60"):
            fill(open_sink(tmp_path / f"o{ending}", N, ONE), table, (0, 60), (40, 80))
    assert os.listdir(tmp_path) == []


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
    with pytest.raises(InputError, match=words), open_sink(tmp_path / "o.npy", N, ONE) as sink:
        sink.write(start, block)


def test_outputs_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.zarr, \.parquet, \.npy, \.csv"):
        open_sink(tmp_path / "out.txt", N, ONE)
    with pytest.raises(InputError, match="local"):
        open_sink("s3://bucket/out.parquet", N, ONE)
    with pytest.raises(InputError, match="different names"):
        open_sink(tmp_path / "out.csv", N, [*ONE, *ONE])
    (tmp_path / "file").touch()
    with pytest.raises(StorageError), open_sink(tmp_path / "file" / "out.csv", N, ONE):
        pass


FULL_DISK = """
import resource, signal, sys, os, errno
import numpy as np
from streamrf.support.errors import StorageError
from streamrf.data.writers import open_sink
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = sys.argv[1]
rng = np.random.default_rng(0)
for ending in (".zarr", ".parquet", ".npy", ".csv"):
    sink = open_sink(os.path.join(folder, "out" + ending), 200_000, [("p", np.dtype("f8"))])
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        with sink:
            for start in range(0, 200_000, 10_000):
                sink.write(start, {"p": rng.normal(size=10_000)})
        print(ending, "was written")
    except StorageError as error:
        print(ending, error.errno == errno.EFBIG, os.listdir(folder))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""


KILLED = """
import os, signal, sys
from streamrf.data.writers import open_sink
sinks = [open_sink(f"{sys.argv[1]}/out{ending}", 10, [("p", "f8")]).__enter__() for ending in sys.argv[2:]]
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_with_the_next_output(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), *ENDINGS], check=False)
    assert run.returncode != 0
    left = os.listdir(tmp_path)
    assert len(left) == len(ENDINGS)
    assert all(name.startswith(".") for name in left)
    with open_sink(tmp_path / "new.npy", N, ONE) as sink:
        sink.write(0, make_table(ONE))
    assert os.listdir(tmp_path) == ["new.npy"]


def test_half_a_part_of_a_lost_worker_is_not_in_the_output(tmp_path: Path) -> None:
    for overwrite in (False, True):  # with a stray file in it, it would not be replaced
        with open_parts(tmp_path / "out.parquet", N, ONE, overwrite=overwrite) as sink:
            write_part(sink.spec(), [Span(0, N)], [(0, make_table(ONE))])
            sink.wrote([Span(0, N)])
            Path(sink.spec()["place"], "part-000.parquet.0123abcd.tmp").write_bytes(b"PAR1")
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
    with pytest.raises(StorageError, match="no space"), open_sink(tmp_path / "out.npy", N, ONE):
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
        for run, values in buffer.add(span, {"row": np.arange(*span)}):
            runs.append((run, values["row"]))
        held = max(held, sum(len(piece["row"]) for piece in buffer._pieces))
    runs += [(run, values["row"]) for run, values in buffer.drain()]
    assert [row for run, values in runs for row in values] == expected
    assert all(np.array_equal(values, np.arange(*run)) for run, values in runs)
    assert held < step


def test_importing_sinks_imports_no_storage_library() -> None:
    code = "import sys, streamrf.data.writers; print(sorted({'zarr', 'pyarrow', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
