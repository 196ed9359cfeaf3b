"""Data that changes between a stop and a resume: refused, naming what changed; an untouched copy of nothing is not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr
from commands import FAST, start, streamrf
from interruptions import Impatient
from s3_server import s3_bucket
from tables import smooth, write_zarr

from streamrf.data.open import open_source
from streamrf.data.source import Block
from streamrf.data.stored import MOST, in_brief
from streamrf.recipe import Recipe
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.rowset import Ledger, RowSet
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.progress import Interrupted
from streamrf.support.storage import safejson
from streamrf.support.storage.checkpoint import STORED, Checkpoint
from streamrf.support.threads import Threads
from streamrf.training.run import Settings, train
from streamrf.training.update.changes import Work, accumulate, prepare
from streamrf.training.update.statistics import Statistics

FIXED = Recipe(D=32, kernel="gaussian", length_scale=1.5, scaling="standard", bits="8", ridge=1e-4, pilot="none")
ROWS = 20_000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run can be stopped every 8,192 rows."""
    monkeypatch.setattr("streamrf.statistics.gram.MOST_PIECE", 8192)


def write(folder: Path, form: str) -> str:
    X, y = smooth(ROWS)
    if form == "zarr":
        return write_zarr(folder / "data.zarr", X, y, chunk=1000)
    if form == "npy":
        np.save(folder / "X.npy", X)
        np.save(folder / "y.npy", y)
        return str(folder / "X.npy")
    table = pd.DataFrame(X, columns=[f"x{j}" for j in range(X.shape[1])]).assign(y=y)
    table.to_parquet(folder / "data.parquet", row_group_size=1000)
    return str(folder / "data.parquet")


def rewrite_the_middle(path: str, form: str) -> None:
    """Other values, of the same size, where neither the first nor the last rows are."""
    middle = slice(5000, 15_000)
    if form == "zarr":
        array = zarr.open_group(path, mode="r+")["X"]
        array[middle] = -np.asarray(array[middle])
    elif form == "npy":
        values = np.load(path, mmap_mode="r+")
        values[middle] *= -1
        values.flush()
    else:
        table = pd.read_parquet(path)
        table.loc[5000:15_000, "x0"] *= -1
        table.to_parquet(path, row_group_size=1000)


def begin(path: str, place: Path) -> None:
    """Train until half the rows are summed and saved."""
    with pytest.raises(Interrupted):
        train(open_source(path), FIXED, Settings(checkpoint=place, threads=1), Impatient(8192))
    assert Checkpoint(place).exists()


CHANGED = {"zarr": r"data\.zarr/X/c/\d+/0 changed", "npy": r"X\.npy changed", "parquet": r"data\.parquet changed"}


@pytest.mark.parametrize("form", CHANGED)
def test_rows_rewritten_after_a_stop_are_refused_by_name(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form)
    begin(path, tmp_path / "saved")
    rewrite_the_middle(path, form)
    with pytest.raises(MismatchError, match=CHANGED[form] + r".*after the checkpoint.*start over"):
        train(open_source(path), FIXED, Settings(checkpoint=tmp_path / "saved", threads=1))


@pytest.mark.parametrize("form", CHANGED)
def test_what_did_not_change_resumes_with_the_same_bits(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, form)
    begin(path, tmp_path / "saved")
    resumed = train(open_source(path), FIXED, Settings(checkpoint=tmp_path / "saved", threads=1))
    assert resumed.state.digest() == train(open_source(path), FIXED).state.digest()


def test_data_that_was_moved_resumes(tmp_path: Path) -> None:
    path = write(tmp_path, "zarr")
    begin(path, tmp_path / "saved")
    (tmp_path / "elsewhere").mkdir()
    shutil.move(path, tmp_path / "elsewhere" / "data.zarr")
    source = open_source(str(tmp_path / "elsewhere" / "data.zarr"))
    assert train(source, FIXED, Settings(checkpoint=tmp_path / "saved", threads=1)).model.metadata["rows"] == ROWS


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda chunk: os.utime(chunk, (1, 1)), r"c/3/0 changed \(then \d+ bytes of 20.*, now \d+ bytes of 1970"),
        (lambda chunk: chunk.unlink(), r"c/3/0 was removed"),
        (lambda chunk: shutil.copy(chunk, chunk.with_name("1")), r"c/3/1 appeared"),
    ],
)
def test_a_chunk_touched_lost_or_added(tmp_path: Path, change: Callable[[Path], object], told: str) -> None:
    path = write(tmp_path, "zarr")
    begin(path, tmp_path / "saved")
    change(Path(path, "X", "c", "3", "0"))
    with pytest.raises(MismatchError, match=told):
        train(open_source(path), FIXED, Settings(checkpoint=tmp_path / "saved", threads=1))


def test_one_of_several_shards(tmp_path: Path) -> None:
    paths = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        paths.append(write_zarr(tmp_path / str(number) / "data.zarr", *smooth(5000, seed=number), chunk=500))
    with pytest.raises(Interrupted):
        train(open_source(paths), FIXED, Settings(checkpoint=tmp_path / "saved", threads=1), Impatient(5000))
    os.utime(Path(paths[1], "y", "c", "4"), (1, 1))
    with pytest.raises(MismatchError, match=r"shard 1, data\.zarr/y/c/4 changed"):
        train(open_source(paths), FIXED, Settings(checkpoint=tmp_path / "saved", threads=1))


def test_checkpoints_of_earlier_versions_without_marks_resume(tmp_path: Path) -> None:
    path, identity = write(tmp_path, "zarr"), {"data": "d", "recipe": {}}
    Checkpoint(tmp_path / "saved").save(identity, [], {}, {})
    assert Checkpoint(tmp_path / "saved").load({**identity, STORED: open_source(path).stored()}) is not None


def test_a_killed_command_refuses_data_that_changed(tmp_path: Path) -> None:
    """As it was found: kill -9, rows rewritten, the same command again."""
    path = write(tmp_path, "zarr")
    args = ("train", path, *FAST, "--out", tmp_path / "a.model", "--checkpoint-every", "0s")
    process = start("held", tmp_path, *args, module="tests.interruptions")
    while not (tmp_path / "held").exists():
        assert process.poll() is None
    process.kill()
    process.communicate()
    rewrite_the_middle(path, "zarr")
    answer = streamrf(*args, "--quiet")
    assert answer.code == 5
    assert "data.zarr/X/c/10/0 changed" in answer.sentence
    assert "--checkpoint" in answer.sentence
    shutil.rmtree(tmp_path / "a.model.checkpoint")
    assert streamrf(*args, "--quiet").code == 0


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket() as url:
        yield url


def upload(path: str, url: str) -> None:
    import s3fs

    files = [Path(path)] if Path(path).is_file() else [each for each in Path(path).rglob("*") if each.is_file()]
    for file in files:
        s3fs.S3FileSystem().pipe_file(f"{url}/{file.relative_to(path)}".removesuffix("/."), file.read_bytes())


@pytest.mark.parametrize("form", ["zarr", "parquet"])
def test_objects_of_a_bucket_are_known_by_their_etag(tmp_path: Path, bucket: str, form: str) -> None:
    path, url = write(tmp_path, form), f"{bucket}/data.{form}"
    upload(path, url)
    before = open_source(url).stored()
    assert before
    upload(path, url)  # uploaded again, and the same bytes: an ETag is of the content
    assert open_source(url).stored() == before
    rewrite_the_middle(path, form)
    upload(path, url)
    after = open_source(url).stored()
    assert after.keys() == before.keys()
    changed = {name for name in before if before[name] != after[name]}
    assert len(changed) == (10 if form == "zarr" else 1)


def test_arrays_in_memory_have_no_files() -> None:
    assert open_source(smooth(100)).stored() == {}


def test_many_files_are_kept_in_brief() -> None:
    marks = {f"data.zarr/X/c/{i}/0": f"{i} bytes" for i in range(10 * MOST)}
    brief = in_brief(marks)
    assert len(brief) <= MOST + 1
    changed = in_brief({**marks, "data.zarr/X/c/77/0": "78 bytes"})
    assert [name for name in brief if brief[name] != changed[name]] == [
        "one of data.zarr/X/c/70/0 to data.zarr/X/c/79/0"
    ]


class TestSuccess:
    """A run that ends well leaves no sums behind for the next night's."""

    def test_train_clears_its_checkpoint(self, tmp_path: Path) -> None:
        path = write(tmp_path, "zarr")
        begin(path, tmp_path / "saved")
        train(open_source(path), FIXED, Settings(checkpoint=tmp_path / "saved", checkpoint_every=0, threads=1))
        assert not (tmp_path / "saved").exists()

    def test_so_do_sums_without_a_model(self, tmp_path: Path) -> None:
        path = write(tmp_path, "zarr")
        with Threads(1) as threads:
            work = Work(threads, Settings(checkpoint=tmp_path / "saved", checkpoint_every=0))
            statistics = accumulate(prepare(open_source(path), FIXED, work), open_source(path), work)
        assert statistics.rows == ROWS
        assert not (tmp_path / "saved").exists()

    def test_the_command_does_so_once_the_model_is_written(self, tmp_path: Path) -> None:
        path, out = write(tmp_path, "zarr"), tmp_path / "a.model"
        args = ("train", path, *FAST, "--out", out, "--checkpoint-every", "0s", "--quiet")
        killed = start("killed", str(out / "archive.json"), 1, *args, module="tests.interruptions")
        killed.communicate()
        assert (tmp_path / "a.model.checkpoint").exists() or killed.returncode == 0
        assert streamrf(*args, "--overwrite").code == 0
        assert not (tmp_path / "a.model.checkpoint").exists()


class TestCounts:
    """Rows summed and rows dropped are the rows of the ledger."""

    def test_a_resealed_checkpoint_with_other_rows(self, tmp_path: Path) -> None:
        path, place = write(tmp_path, "zarr"), tmp_path / "saved"
        begin(path, place)
        [file] = place.glob("*.json")
        document = json.loads(file.read_text())
        document.pop("sha256")
        document["ledger"] = [[0, 4096]]
        file.write_bytes(safejson.seal(document, "checkpoint"))
        with pytest.raises(FileFormatError, match=r"sums hold 8,192 rows and 0 were dropped, but the ledger has 4,096"):
            train(open_source(path), FIXED, Settings(checkpoint=place, threads=1))

    def test_resealed_statistics_with_other_rows(self, tmp_path: Path) -> None:
        path = write(tmp_path, "zarr")
        trained = train(open_source(path), FIXED)
        ledger = Ledger()
        ledger.add("f" * 64, "another", ROWS, RowSet([(0, 77)]))
        trained.model.ledger = ledger
        trained.model.save(tmp_path / "a.model", state=trained.state)
        with pytest.raises(FileFormatError, match=r"hold 20,000 rows and 0 were dropped, but the ledger has 77"):
            Statistics.load(tmp_path / "a.model")

    def test_an_engine_that_loses_rows(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        update = Gram.update

        def forgetful(self: Gram, state: GramState, block: Block, *args: Any, **more: Any) -> None:
            update(self, state, block.take(slice(0, len(block) - 1)), *args, **more)

        monkeypatch.setattr(Gram, "update", forgetful)
        with pytest.raises(MismatchError, match=r"the ledger has 20,000"):
            train(open_source(write(tmp_path, "zarr")), FIXED.with_(holdout=0.0))
