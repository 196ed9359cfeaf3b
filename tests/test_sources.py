"""Sources: the same table from every format, and one clear sentence for whatever is wrong with it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from s3_server import s3_bucket
from sources_conformance import NAMES, ROWS, SourceConformance, make_X, make_y, write_parquet, write_zarr

from streamrf.data import locations as locations_module
from streamrf.data.locations import is_pattern
from streamrf.data.open import open_source
from streamrf.data.parts import data_files
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Source, Span, work_spans
from streamrf.support.errors import DataError, InputError, MissingDependencyError, StorageError

FEW_TYPES, FEW_KINDS = ["f4", "i8"], ["int", "text"]  # where another class tries them all


class TestArrays(SourceConformance):
    supports_spec = False

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        return {"data": X if y is None else (X, y)}

    def handed_over(self, source: Source) -> int:
        return 8 * ROWS  # the rest are views

    def test_chunk_rows(self) -> None:
        assert ArraySource(make_X(), chunk_rows=60).chunks() == (Span(0, 60), Span(60, ROWS))

    def test_reading_copies_nothing(self) -> None:
        X = make_X()
        assert np.shares_memory(ArraySource(X).read(Span(3, 9)).X, X)

    @pytest.mark.parametrize("X", [np.asfortranarray(make_X()), make_X()[:, ::-1], make_X(">f8"), make_X().astype("g")])
    def test_any_layout_is_handed_over_plain(self, X: np.ndarray) -> None:
        block = ArraySource(X).read(Span(1, 90))
        assert block.X.flags.c_contiguous
        assert block.X.dtype.isnative
        assert block.X.dtype.itemsize <= 8
        assert np.array_equal(block.X, X[1:90])

    def test_names_are_counted(self) -> None:
        assert ArraySource(make_X(), feature_names=NAMES).feature_names == NAMES
        with pytest.raises(InputError, match="2 feature names for 5"):
            ArraySource(make_X(), feature_names=("a", "b"))

    def test_objects(self) -> None:
        y = np.array(["a", None, "bb"], dtype=object)
        X = np.zeros((3, 1))
        assert ArraySource(X, y).read(Span(0, 3)).y is not None
        assert ArraySource(X, y).read_targets(Span(2, 3)).dtype.kind == "U"
        with pytest.raises(DataError, match="int"):
            ArraySource(X, np.array(["a", 1, "b"], dtype=object)).read_targets(Span(0, 3))


class TestZarr3(SourceConformance):
    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        write_zarr(str(folder / "t.zarr"), X, y, min(chunk_rows, ROWS))
        return {"data": str(folder / "t.zarr")}


class TestZarr2(SourceConformance):
    x_types = FEW_TYPES
    y_kinds = FEW_KINDS

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        write_zarr(str(folder / "t.zarr"), X, y, min(chunk_rows, ROWS), 2, order="F")
        return {"data": folder / "t.zarr"}


class TestZarrChunkedByColumns(SourceConformance):
    x_types = FEW_TYPES
    y_kinds = FEW_KINDS

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        write_zarr(str(folder / "t.zarr"), X, y, min(chunk_rows, ROWS), x_chunks=(min(chunk_rows, ROWS), 2))
        return {"data": str(folder / "t.zarr")}


class TestZarrSharded(SourceConformance):
    x_types = FEW_TYPES
    y_kinds = FEW_KINDS

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        rows = min(chunk_rows, ROWS)
        write_zarr(str(folder / "t.zarr"), X, y, rows, x_chunks=(rows, 3), shards=(2 * rows, 6))
        return {"data": str(folder / "t.zarr")}

    def test_chunks_are_the_inner_ones(self, tmp_path: Path) -> None:
        assert len(self.open(tmp_path, make_X(), make_y("int"), 10).chunks()[0]) == 10


class TestNpyFolder(SourceConformance):
    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        np.save(folder / "X.npy", X)
        if y is not None:
            np.save(folder / "y.npy", y)
        return {"data": str(folder)}


class TestNpyFiles(SourceConformance):
    x_types = FEW_TYPES
    y_kinds = FEW_KINDS

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        np.save(folder / "X_train.npy", np.asfortranarray(X))
        if y is not None:
            np.save(folder / "y_train.npy", y)
        return {"data": str(folder / "X_train.npy")}


class TestParquetFile(SourceConformance):
    names = NAMES

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        return write_parquet(folder / "t.parquet", X, y, chunk_rows)


class TestParquetFolder(SourceConformance):
    names = NAMES

    x_types = FEW_TYPES
    y_kinds = FEW_KINDS

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        (folder / "_SUCCESS.parquet").write_bytes(b"not data")
        for name, rows in (("a", slice(0, 60)), ("b", slice(60, 60)), ("c", slice(60, None))):
            options = write_parquet(folder / f"{name}.parquet", X[rows], None if y is None else y[rows], chunk_rows)
        return {**options, "data": str(folder)}

    def test_a_pattern_is_the_same(self, tmp_path: Path) -> None:
        options = self.store(tmp_path, make_X(), make_y("int"), 40)
        source = open_source(**{**options, "data": str(tmp_path / "[ac].parquet")})
        assert source.fingerprint() == open_source(**options).fingerprint()
        assert open_source(**source.spec()).chunks() == source.chunks()


class TestShards(SourceConformance):
    """Of three formats without names; the rows are the same."""

    x_types = FEW_TYPES
    y_kinds = FEW_KINDS

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        parts = []
        for i, rows in enumerate((slice(0, 50), slice(50, 51), slice(51, None))):
            parts.append(folder / f"{i}.zarr")
            write_zarr(str(parts[-1]), X[rows], None if y is None else y[rows], min(chunk_rows, len(X[rows])))
        np.save(folder / "X.npy", X[50:51])
        if y is not None:
            np.save(folder / "y.npy", y[50:51])
        return {"data": [parts[0], folder / "X.npy", str(parts[2])]}

    def test_no_unit_of_work_crosses_shards(self, tmp_path: Path) -> None:
        source = self.open(tmp_path, make_X(), make_y("int"), 13)
        assert source.shards() == (Span(0, 50), Span(50, 51), Span(51, ROWS))
        assert {span.start for span in source.shards()} <= {span.start for span in work_spans(source, 1000, 1 << 30)}

    def test_a_pattern_of_zarr_stores_is_shards(self, tmp_path: Path) -> None:
        self.store(tmp_path, make_X(), make_y("int"), 13)
        assert open_source(str(tmp_path / "*.zarr")).shards() == (Span(0, 50), Span(50, 51), Span(51, ROWS))

    def test_a_change_in_a_middle_shard_shows(self, tmp_path: Path) -> None:
        X, y = make_X(rows=1000), make_y("int", 1000)
        first = open_source([(X[a : a + 250], y[a : a + 250]) for a in range(0, 1000, 250)])
        X = X.copy()
        X[499, 0] += 1
        assert (
            open_source([(X[a : a + 250], y[a : a + 250]) for a in range(0, 1000, 250)]).fingerprint()
            != first.fingerprint()
        )

    @pytest.mark.parametrize(
        ("other", "words"),
        [
            ((make_X()[:, :3], make_y("int")), "columns 5 and arrays in memory 3"),
            ((make_X(), make_y("two")), "target columns"),
            ((make_X("f8"), make_y("int")), "float32.*float64"),
            ((make_X(), make_y("text")), "int64.*<U0"),
            (ArraySource(make_X(), make_y("int"), feature_names=NAMES), "feature names None"),
        ],
    )
    def test_shards_that_differ_are_refused(self, other: Any, words: str) -> None:
        with pytest.raises(DataError, match=words):
            open_source([(make_X(), make_y("int")), other])

    def test_an_empty_list_and_a_list_of_one(self) -> None:
        with pytest.raises(InputError, match="empty"):
            open_source([])
        assert isinstance(open_source([(make_X(), make_y("int"))]), ArraySource)


class TestZarrAtAnAddress(SourceConformance):
    """A synchronous fsspec file system behind zarr."""

    x_types = FEW_TYPES
    y_kinds = FEW_KINDS

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        url = f"memory://{folder}/t.zarr"
        write_zarr(zarr.storage.FsspecStore.from_url(url), X, y, min(chunk_rows, ROWS))
        return {"data": url}


class TestParquetAtAnAddress(SourceConformance):
    names = NAMES

    x_types = FEW_TYPES
    y_kinds = FEW_KINDS

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        local = write_parquet(folder / "t.parquet", X, y, chunk_rows)
        url = f"memory://{folder}/t.parquet"
        with fsspec.open(url, "wb") as file:
            file.write((folder / "t.parquet").read_bytes())
        return {**local, "data": url}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


class TestS3:
    X, y = make_X(), make_y("text")

    def check(self, source: Source) -> None:
        for span in (*source.chunks(), Span(3, 90)):
            block = source.read(span)
            assert block.y is not None
            assert np.array_equal(block.X, self.X[span.start : span.stop])
            assert np.array_equal(block.y, self.y[span.start : span.stop])
        again = open_source(**source.spec())
        assert again.fingerprint() == source.fingerprint()
        assert "secret" not in str(source.spec())

    def test_zarr(self, bucket: str) -> None:
        write_zarr(zarr.storage.FsspecStore.from_url(f"{bucket}/t.zarr"), self.X, self.y, 40)
        self.check(open_source(f"{bucket}/t.zarr"))

    def test_parquet_folder_and_pattern(self, bucket: str, tmp_path: Path) -> None:
        write_parquet(tmp_path / "a.parquet", self.X[:50], self.y[:50], 40)
        write_parquet(tmp_path / "b.parquet", self.X[50:], self.y[50:], 40)
        fs, path = fsspec.core.url_to_fs(f"{bucket}/table")
        fs.put([str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")], f"{path}/")
        for data in (f"{bucket}/table", f"{bucket}/table/*.parquet", [f"{bucket}/table/{n}.parquet" for n in "ab"]):
            self.check(open_source(data, target="y0"))

    def test_what_is_not_there(self, bucket: str) -> None:
        for data in (f"{bucket}/none.zarr", f"{bucket}/none.parquet", f"{bucket}/none", f"{bucket}/none/*.parquet"):
            with pytest.raises((StorageError, DataError), match="none"):
                open_source(data)

    def test_a_lost_object(self, bucket: str) -> None:
        write_zarr(zarr.storage.FsspecStore.from_url(f"{bucket}/lost.zarr"), self.X, None, 40)
        fs, path = fsspec.core.url_to_fs(f"{bucket}/lost.zarr")
        fs.rm_file(f"{path}/X/c/1/0")
        with pytest.raises(DataError, match="no chunk for rows 40:80"):
            open_source(f"{bucket}/lost.zarr", need_targets=False).read(Span(0, ROWS))


class Shelf(BaseHTTPRequestHandler):
    """Files of a folder over HTTP, whole or in ranges, whatever query is asked with them."""

    folder: Path

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        file = self.folder / self.path.partition("?")[0].strip("/")
        if not file.is_file():
            self.send_error(404)
            return
        body, asked = file.read_bytes(), self.headers.get("Range")
        first, last = map(int, asked.removeprefix("bytes=").split("-")) if asked else (0, len(body) - 1)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
        self.send_header("Content-Length", str(len(body[first : last + 1])))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[first : last + 1])

    do_HEAD = do_GET


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Shelf,), {"folder": tmp_path}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class TestAddresses:
    @pytest.mark.parametrize("query", ["", "?version=2", "?file=a/b.npy&x=[1]*"])
    def test_an_address_with_a_query(self, tmp_path: Path, site: str, query: str) -> None:
        """A question mark begins a query there; in patterns it stands for any letter."""
        write_parquet(str(tmp_path / "t.parquet"), make_X(), make_y("int"), 40)
        source = open_source(f"{site}/t.parquet{query}", target="y0")
        assert np.array_equal(source.read(Span(0, ROWS)).X, make_X())
        assert open_source(**source.spec()).fingerprint() == source.fingerprint()
        assert data_files(f"{site}/t.parquet{query}") == [f"{site}/t.parquet{query}"]
        with pytest.raises(InputError, match="local disks only"):
            open_source(f"{site}/t.npy{query}")
        with pytest.raises(StorageError, match="does not exist"):
            open_source(f"{site}/lost.parquet{query}")

    def test_patterns_of_addresses(self) -> None:
        for pattern in ("s3://b/part-?.zarr", "https://h/*.parquet", "https://h/[ab].pq?v=1", "/nowhere/t?.zarr"):
            assert is_pattern(pattern)
        for plain in ("https://h/t.parquet?v=*", "http://[::1]:80/t.parquet", "https://h?a=[b]", "s3://b/t.zarr"):
            assert not is_pattern(plain)

    def test_file_urls_are_paths(self, tmp_path: Path) -> None:
        write_zarr(str(tmp_path / "t.zarr"), make_X(), make_y("int"), 40)
        assert open_source(f"file://{tmp_path}/t.zarr").spec()["data"] == str(tmp_path / "t.zarr")

    def test_relative_paths_become_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_zarr(str(tmp_path / "t.zarr"), make_X(), make_y("int"), 40)
        monkeypatch.chdir(tmp_path)
        spec = open_source("t.zarr").spec()
        monkeypatch.chdir("/")
        assert open_source(**spec).n_rows == ROWS

    @pytest.mark.parametrize("url", ["s3://key:secret@bucket/t.zarr", "https://h/t.parquet?X-Amz-Signature=abc"])
    def test_credentials_in_an_address_are_refused(self, url: str) -> None:
        with pytest.raises(InputError, match="environment") as caught:
            open_source(url)
        assert "secret@" not in str(caught.value)
        assert "abc" not in str(caught.value)

    def test_a_missing_package_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(*_: Any, **__: Any) -> None:
            raise ImportError("Install s3fs to access S3")

        monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
        monkeypatch.setattr(fsspec, "url_to_fs", missing)
        for data in ("s3://bucket/t.zarr", "s3://bucket/t.parquet", "s3://bucket/*.parquet", "s3://bucket/t"):
            with pytest.raises(MissingDependencyError, match=r"pip install 'streamrf\[s3\]'"):
                open_source(data)

    def test_unknown_schemes_and_remote_npy(self) -> None:
        with pytest.raises(InputError, match="nowhere"):
            open_source("nowhere://a/b.parquet")
        with pytest.raises(InputError, match="local"):
            open_source("s3://bucket/X.npy")

    def test_patterns(self, tmp_path: Path) -> None:
        odd = tmp_path / "a[1].parquet"
        write_parquet(odd, make_X(), make_y("int"), 40)
        assert not locations_module.is_pattern(str(odd))
        assert open_source(str(odd), target="y0").n_rows == ROWS


MEASURE = """
import sys, threading, time
import psutil
from streamrf.data.source import Span
from streamrf.data.open import open_source
process, most, reading = psutil.Process(), 0, True
def watch():
    global most
    while reading:
        most = max(most, process.memory_info().rss)
        time.sleep(0.0005)
source = open_source(sys.argv[1])
source.read_targets(Span(0, 1))
before = process.memory_info().rss
watcher = threading.Thread(target=watch)
watcher.start()
block = source.read(source.chunks()[-1])
reading = False
watcher.join()
most = max(most, process.memory_info().rss)  # with the block, also where the watcher had no turn
print(most - before, source.read_bytes(source.chunks()[-1]), source.block_bytes(source.chunks()[-1]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory means other things elsewhere")
@pytest.mark.parametrize("form", ["zarr", "parquet", "npy"])
def test_reading_needs_no_more_memory_than_it_says(tmp_path: Path, form: str) -> None:
    X = np.random.default_rng(0).normal(size=(240_000, 30)).astype("f4")
    y = np.arange(len(X)) % 7
    if form == "zarr":
        write_zarr(str(tmp_path / "t"), X, y, 120_000)
    elif form == "parquet":
        names = {f"x{j}": X[:, j] for j in range(30)}
        pq.write_table(pa.table({**names, "y": y}), tmp_path / "t", row_group_size=120_000)
    else:
        (tmp_path / "t").mkdir()
        np.save(tmp_path / "t" / "X.npy", X)
        np.save(tmp_path / "t" / "y.npy", y)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "t")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    measured, promised, block = map(int, output.split())
    slack = 12 << 20  # code and thread stacks that come with the first read
    assert block <= measured + slack
    assert measured <= promised + slack


def test_importing_sources_imports_no_storage_library() -> None:
    code = "import sys, streamrf.data; print(sorted({'zarr', 'pyarrow', 'fsspec', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
