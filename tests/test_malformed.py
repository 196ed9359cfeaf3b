"""Content that is wrong although every digest is right: one sentence, never a traceback."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import FAST, PROJECT, done, streamrf
from tables import smooth, write_zarr

sys.path.insert(0, str(PROJECT / "scripts"))

from benchlib.fuzzed import _sealed, use, write_files

from streamrf.models.model import Model
from streamrf.support.errors import DataError, FileFormatError
from streamrf.support.storage import files
from streamrf.support.storage.archive import read_archive
from streamrf.support.storage.checkpoint import Checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    data = write_zarr(folder / "t.zarr", *smooth(300))
    done("train", data, *FAST, "--out", folder / "a.model", "--quiet")
    return folder / "a.model"


def changed(model: Path, to: Path, path: str, value: Any) -> Path:
    """A copy of a model with one value of model.json replaced and all digests right."""
    import hashlib
    import shutil

    shutil.copytree(model, to)
    document = json.loads((to / "model.json").read_text())
    *parents, last = path.split(".")
    place = document
    for name in parents:
        place = place[name]
    place[last] = value
    data = json.dumps(document).encode()
    (to / "model.json").write_bytes(data)
    manifest = json.loads((to / "archive.json").read_text())
    manifest.pop("sha256")
    manifest["files"]["model.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (to / "archive.json").write_bytes(_sealed(manifest))
    return to


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("story", []), ("ridge", "x"), ("ridge", None), ("map", []), ("scaling", 7),
        ("targets", {}), ("targets.task", []), ("ledger", [1]), ("recipe", [[1]]), ("recipe.D", "many"),
        ("feature_names", 3), ("columns", "x"), ("map.precision", {}), ("scaling.kind", -1),
    ],
)  # fmt: skip
def test_a_model_sealed_again(model: Path, tmp_path: Path, path: str, value: Any) -> None:
    wrong = changed(model, tmp_path / "b.model", path, value)
    with pytest.raises(FileFormatError):
        Model.load(wrong)
    answer = streamrf("inspect", wrong)
    assert answer.code == FileFormatError.exit_code
    assert answer.sentence.startswith("streamrf: ")


@pytest.mark.parametrize("width", [1e308, 1e-308])
def test_a_width_whose_square_is_no_number(model: Path, tmp_path: Path, width: float) -> None:
    answer = streamrf("inspect", changed(model, tmp_path / "b.model", "recipe.length_scale", width))
    assert answer.code
    assert answer.sentence.startswith("streamrf: ")
    assert "between 1e-100 and 1e100" in answer.err


def test_a_manifest_of_60_mb_is_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "archive.json").write_bytes(b" " * 60_000_000)
    with pytest.raises(FileFormatError, match="has 60000000 bytes; at most 1048576"):
        read_archive(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"zarr_format": 3}', '{"zarr_format": 9, "node_type": "array"}', "\x00"])
@pytest.mark.parametrize("array", ["X", "y"])
def test_damaged_metadata_of_zarr(tmp_path: Path, array: str, text: str) -> None:
    path = write_zarr(tmp_path / "t.zarr", *smooth(100))
    Path(path, array, "zarr.json").write_text(text)
    for command in ("inspect", "plan"):
        answer = streamrf(command, path)
        assert answer.code == DataError.exit_code, answer.err
        assert path in answer.sentence


def test_csv_that_is_not_text_is_said_with_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,y\n1,2\n3,\xff4,5\n6,7\n")
    answer = streamrf("convert", tmp_path / "t.csv", tmp_path / "t.parquet", "--quiet")
    assert answer.code == DataError.exit_code
    assert "line 3" in answer.sentence
    assert "Traceback" not in capfd.readouterr().err


def test_json_lines_that_are_not_text(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"a": 1, "y": 2}\n{"\xffa": 1, "y": 3}\n')
    answer = streamrf("convert", tmp_path / "t.jsonl", tmp_path / "t.parquet", "--quiet")
    assert answer.code == DataError.exit_code
    assert "line 2" in answer.sentence


def test_new_folders_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint in folders that were not there: the names of all of them are on disk before it is said to be."""
    synced: list[Path] = []
    sync = files.sync_directory
    monkeypatch.setattr(files, "sync_directory", lambda folder: (synced.append(folder), sync(folder)))
    Checkpoint(tmp_path / "a" / "b").save({}, [], {"x": np.zeros(3)}, {})
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= {*synced, tmp_path / "a" / "b"}


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its name before it is said to be written: a power cut leaves the old file or the whole new one."""
    calls: list[str] = []
    rename = os.replace

    def synced(handle: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)

    def renamed(old: Path, new: Path) -> None:
        calls.append(f"renamed to {new.name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    files.atomic_write(tmp_path / "t.json", b"{}")
    content, *rest = calls
    assert content.startswith(".t.json")
    assert rest == ["renamed to t.json", tmp_path.name]


@pytest.mark.parametrize(
    ("path", "value"),
    [("identity.stored", 7), ("identity", []), ("extra.prepared.story", 5), ("extra.rows", "x"), ("arrays", None)],
)
def test_a_checkpoint_sealed_again(tmp_path: Path, path: str, value: Any) -> None:
    write_files("checkpoint", tmp_path / "run")
    [file] = (tmp_path / "run" / "saved").glob("*.json")
    document = json.loads(file.read_text())
    document.pop("sha256")
    *parents, last = path.split(".")
    place = document
    for name in parents:
        place = place[name]
    place[last] = value
    file.write_bytes(_sealed(document))
    ended, _ = use("checkpoint", tmp_path / "run", 10**10)  # this process may be large already
    assert ended.code == FileFormatError.exit_code, ended.err
    assert len(ended.err.splitlines()) == 1
