"""Outputs say when they are whole, and carry checksums: half of one or a flipped byte is an error, not other rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import zarr
from commands import PROJECT, done, streamrf
from s3_server import s3_bucket
from tables import smooth

from streamrf.data.open import open_source
from streamrf.data.source import Span
from streamrf.data.writers import TableWriter, open_shared_writer, open_writer
from streamrf.support.errors import DataError, ExistsError

TYPES = [("prediction", np.dtype("f8"))]


def write_parts(url: str, n_rows: int = 400, *, value: float = 1.0, overwrite: bool = False) -> TableWriter:
    with open_shared_writer(url, n_rows, TYPES, overwrite=overwrite) as writer:
        for start in range(0, n_rows, 100):
            writer.write(start, {"prediction": np.full(100, value)})
    return writer


def read(url: str) -> np.ndarray:
    source = open_source(url, target="prediction", need_targets=False, features=["prediction"])
    return source.read(Span(0, source.n_rows)).X[:, 0]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


class TestParts:
    """A folder of parts in an object store, which has no rename."""

    def names(self, url: str) -> list[str]:
        import s3fs

        fs = s3fs.S3FileSystem(use_listings_cache=False)
        return sorted(name.rpartition("/")[2] for name in fs.ls(url, refresh=True))

    def test_overwriting_replaces_all_rows(self, bucket: str) -> None:
        url = f"{bucket}/replaced.parquet"
        write_parts(url)
        write_parts(url, 300, value=2.0, overwrite=True)
        assert np.array_equal(read(url), np.full(300, 2.0))

    def test_killed_while_overwriting(self, bucket: str) -> None:
        """kill -9 once new parts stand beside the old ones: no _SUCCESS is left, and reading is refused."""
        url = f"{bucket}/killed.parquet"
        write_parts(url)
        code = f"""
import os, signal
import numpy as np
from streamrf.data.writers import open_shared_writer
writer = open_shared_writer({url!r}, 400, [("prediction", np.dtype("f8"))], overwrite=True)
writer.open()
for start in (0, 100):
    writer.write(start, {{"prediction": np.full(100, 2.0)}})
os.kill(os.getpid(), signal.SIGKILL)
"""
        killed = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False)
        assert killed.returncode == -signal.SIGKILL
        assert "_SUCCESS" not in self.names(url)
        assert len(self.names(url)) == 6
        with pytest.raises(DataError, match=r"killed\.parquet is not complete.*no _SUCCESS.*overwrite"):
            read(url)
        write_parts(url, value=3.0, overwrite=True)
        assert np.array_equal(read(url), np.full(400, 3.0))

    def test_a_run_that_fails_leaves_the_earlier_output_whole(self, bucket: str) -> None:
        url = f"{bucket}/failed.parquet"
        write_parts(url)
        before = self.names(url)
        writer = open_shared_writer(url, 400, TYPES, overwrite=True)
        writer.open()
        writer.write(0, {"prediction": np.full(100, 2.0)})
        assert "_SUCCESS" not in self.names(url)
        writer.abort()
        assert self.names(url) == before
        assert np.array_equal(read(url), np.ones(400))

    def test_what_may_not_be_replaced_keeps_its_marker(self, bucket: str) -> None:
        url = f"{bucket}/kept.parquet"
        write_parts(url)
        with pytest.raises(ExistsError):
            write_parts(url)
        assert np.array_equal(read(url), np.ones(400))

    def test_parts_that_do_not_fit_the_marker(self, bucket: str, tmp_path: Path) -> None:
        """Of a local copy too: the marker is copied with it."""
        import s3fs

        url, copy = f"{bucket}/copied.parquet", tmp_path / "copied.parquet"
        write_parts(url)
        s3fs.S3FileSystem().get(f"{url}/", f"{copy}/", recursive=True)
        assert np.array_equal(read(str(copy)), np.ones(400))
        first, *_, last = sorted(copy.glob("part-*"))
        (copy / "part-400-00000000.parquet").write_bytes(first.read_bytes())
        with pytest.raises(DataError, match=r"part-400-00000000\.parquet, which is none of the 4 parts"):
            read(str(copy))
        (copy / "part-400-00000000.parquet").unlink()
        last.unlink()
        with pytest.raises(DataError, match=r"lacks part-300-.* has 3 of the 4 parts that its _SUCCESS names"):
            read(str(copy))
        (copy / "_SUCCESS").unlink()
        with pytest.raises(DataError, match="not complete"):
            read(str(copy))

    @pytest.mark.parametrize("mark", [None, b"", b'{"files": 2}', b"{not JSON"])
    def test_folders_of_other_programs_are_read_as_they_are(self, tmp_path: Path, mark: bytes | None) -> None:
        for number in range(2):
            pd.DataFrame({"prediction": np.ones(10)}).to_parquet(tmp_path / f"part-{number:05d}-abc.snappy.parquet")
        if mark is not None:
            (tmp_path / "_SUCCESS").write_bytes(mark)
        assert len(read(str(tmp_path))) == 20

    def test_an_empty_marker_of_an_earlier_version(self, tmp_path: Path) -> None:
        table = pd.DataFrame({"prediction": np.ones(10)})
        table.to_parquet(tmp_path / "part-00-0000000a.parquet")
        (tmp_path / "_SUCCESS").touch()
        assert len(read(str(tmp_path))) == 10
        table.to_parquet(tmp_path / "part-00-0000000b.parquet")
        with pytest.raises(DataError, match="parts of 2 runs"):
            read(str(tmp_path))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, y = smooth(2000)
    path = tmp_path_factory.mktemp("table") / "t.csv"
    pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(y=y).to_csv(path, index=False)
    return path


class TestChecksums:
    def test_converted_parquet(self, table: Path, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        done("convert", table, path, "--quiet", "--chunk-rows", 500)
        chunk = pq.ParquetFile(path).metadata.row_group(2).column(1)
        middle = chunk.data_page_offset + chunk.total_compressed_size - 50
        before = open_source(str(path)).read(Span(1000, 1500)).X
        flip(path, middle)
        with pytest.raises(DataError, match=r"row group 2 \(rows 1000:1500\) of .*t\.parquet is truncated or corrupt"):
            open_source(str(path)).read(Span(1000, 1500))
        unchecked = pq.ParquetFile(path).read_row_group(2).to_pandas()[[f"x{j}" for j in range(6)]]
        assert not np.array_equal(unchecked, before)  # which is what was summed without a word

    def test_converted_zarr(self, table: Path, tmp_path: Path) -> None:
        path = tmp_path / "t.zarr"
        done("convert", table, path, "--quiet", "--chunk-rows", 500)
        chunk = path / "X" / "c" / "2" / "0"
        for at in range(0, chunk.stat().st_size, max(1, chunk.stat().st_size // 40)):
            flip(chunk, at)
            with pytest.raises(DataError, match=r"the chunk with rows 1000:1500 of X in .*t\.zarr"):
                open_source(str(path)).read(Span(1000, 1500))
            flip(chunk, at)
        assert len(open_source(str(path)).read(Span(1000, 1500)).X) == 500

    @pytest.mark.parametrize("ending", ["parquet", "zarr"])
    def test_predictions(self, tmp_path: Path, ending: str) -> None:
        path = tmp_path / f"p.{ending}"
        values = np.random.default_rng(0).normal(size=1000)
        with open_writer(path, 1000, TYPES) as writer:
            writer.write(0, {"prediction": values})
        if ending == "zarr":
            flip(path / "prediction" / "c" / "0", 3000)
            with pytest.raises(Exception, match="checksum"):
                zarr.open_group(str(path), mode="r")["prediction"][:]
        else:
            flip(path, pq.ParquetFile(path).metadata.row_group(0).column(0).dictionary_page_offset + 3000)
            with pytest.raises(OSError, match="could not verify page integrity"):
                pq.ParquetFile(path, page_checksum_verification=True).read()

    def test_the_command_names_file_and_place(self, table: Path, tmp_path: Path) -> None:
        path = tmp_path / "t.zarr"
        done("convert", table, path, "--quiet", "--chunk-rows", 500)
        flip(path / "X" / "c" / "3" / "0", 99)
        answer = streamrf("train", path, "--D", 16, "--pilot", "none", "--quiet")
        assert answer.code == DataError.exit_code
        assert "rows 1500:2000 of X" in answer.sentence
        assert os.fspath(path) in answer.sentence
