"""What one process of `fuzz` does: write files of one kind, then change one, use it, and say how that ended.

python -m benchlib.fuzzed KIND FOLDER FIRST STOP BUDGET
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import re
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchlib.running import high_water_mark
from streamrf.cli import main as command
from streamrf.data.open import open_source
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.storage.archive import MANIFEST
from streamrf.support.storage.tensors import HashingReader, HashingWriter, read_tensors, write_tensors

ROWS, INPUTS = 600, 4
SETTINGS = ("--D", "16", "--pilot", "none", "--length-scale", "2", "--bits", "8", "--lambda", "1e-4", "--threads", "1")
ARRAY_TYPES = ("<f8", "<f4", "<i8", "<i4", "i1", "u1", "?")
ODD = (None, True, False, 0, -1, 1, 7, 2**31, 2**63, 10**30, -(10**9), 0.5, -2.5, 1e308, "", "x", "0" * 64, [], {},
       [[]], [1, 2], {"a": 1}, "gaussian", "auto", "\x1b[2J")  # fmt: skip


@dataclass
class Ended:
    code: int
    out: str
    err: str


def streamrf(*args: object) -> Ended:
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command([str(arg) for arg in args])
        except SystemExit as end:
            code = int(end.code or 0)
    return Ended(code, out.getvalue(), err.getvalue())


# -- the files


def table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, INPUTS)).astype(np.float32)
    return X, np.sin(X[:, 0]) + X[:, 1]


def write_files(kind: str, folder: Path) -> Path:
    """The file or folder that is changed; what else is needed to use it stands beside."""
    X, y = table()
    folder.mkdir(parents=True)
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(INPUTS)]).assign(y=y)
    frame.to_csv(folder / "t.csv", index=False)
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", y)
    places = {"npy": "X.npy", "csv": "t.csv", "jsonl": "t.jsonl"}
    if kind == "jsonl":
        frame.to_json(folder / "t.jsonl", orient="records", lines=True)
    elif kind in ("zarr", "parquet"):
        _done(streamrf("convert", folder / "t.csv", folder / f"t.{kind}", "--quiet", "--chunk-rows", 200))
    elif kind == "checkpoint":
        _interrupt(folder)
    elif kind in ("model", "statistics"):
        _done(streamrf("train", folder / "X.npy", *SETTINGS, "--quiet", "--out", folder / "t.model"))
    place = folder / places.get(kind, {"checkpoint": "saved"}.get(kind, f"t.{kind}"))
    if kind == "statistics":
        place = folder / "t.model"
    return place


def _done(ended: Ended) -> None:
    if ended.code:
        raise RuntimeError(ended.err)


class Stops(Reporter):
    def advanced(self, done: int, checkpoint_age: float | None) -> None:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGINT)


def _interrupt(folder: Path) -> None:
    """A checkpoint of a run over two shards, stopped after the first."""
    from streamrf.support.threads import Threads
    from streamrf.training.run import Settings, Training

    X, y = table()
    for name, rows in (("a", slice(0, 400)), ("b", slice(400, ROWS))):
        (folder / name).mkdir()
        np.save(folder / name / "X.npy", X[rows])
        np.save(folder / name / "y.npy", y[rows])
    settings = Settings(checkpoint=folder / "saved", threads=1)
    source = open_source([str(folder / "a"), str(folder / "b")])
    with contextlib.suppress(Interrupted), Threads(1) as threads:
        Training(source, _recipe(), settings, Stops(), threads).run()
    if not (folder / "saved").exists():
        raise RuntimeError("the run was not interrupted")


def _recipe() -> Any:
    from streamrf.recipe import Recipe

    return Recipe(D=16, pilot="none", length_scale=2.0, bits="8", ridge=1e-4)


# -- using them: how it ended, and the result, which must not differ


def use(kind: str, folder: Path, budget: int) -> tuple[Ended, str]:
    if kind in ("model", "statistics"):
        return use_model(folder, statistics=kind == "statistics")
    if kind == "checkpoint":
        out = folder / "out.model"
        ended = streamrf(
            "train", folder / "a", folder / "b", *SETTINGS, "--out", out, "--overwrite", "--checkpoint",
            folder / "saved", "--resume", "--json", "--memory", budget,
        )  # fmt: skip
    else:
        name = {"npy": "X.npy"}.get(kind, f"t.{kind}")
        shown = streamrf("inspect", folder / name)
        if shown.code == 1:
            return shown, ""
        out = ("--out", folder / "out.model", "--overwrite", "--json", "--no-checkpoint")
        ended = streamrf("train", folder / name, *SETTINGS, *out, "--memory", budget)
    return ended, "" if ended.code else json.loads(ended.out)["statistics_digest"]


def use_model(folder: Path, *, statistics: bool) -> tuple[Ended, str]:
    model = folder / "t.model"
    shown = streamrf("inspect", model)
    if shown.code:
        return shown, ""
    if statistics:
        ended = streamrf("solve", model, "--lambda", "1e-3", "--out", folder / "solved.model", "--overwrite", "--json")
        return ended, "" if ended.code else json.loads(ended.out)["statistics_digest"]
    ended = streamrf("predict", model, folder / "X.npy", "--out", folder / "p.npy", "--overwrite", "--quiet")
    return ended, "" if ended.code else hashlib.sha256((folder / "p.npy").read_bytes()).hexdigest()


# -- changes


def change(kind: str, place: Path, rng: random.Random) -> tuple[str, bool]:
    """Change a file; what was done, and whether a checksum guards it."""
    sealed = kind in ("model", "statistics", "checkpoint")
    if sealed and rng.random() < 0.6:
        return (reseal_checkpoint if kind == "checkpoint" else reseal_archive)(place, rng), False
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    file = rng.choice(files)
    if file.name == "zarr.json" and rng.random() < 0.7:
        document = json.loads(file.read_text())
        told = edit(document, rng)
        file.write_text(json.dumps(document))
        return f"{file.name}: {told}", False
    data = bytearray(file.read_bytes())
    guarded = sealed or (kind == "zarr" and file.name != "zarr.json")
    told, at = damage(data, rng)
    if kind == "parquet":
        guarded = _in_a_page(file, at) and told.startswith("bit")
    file.write_bytes(data)
    return f"{file.name}: {told}", guarded


def damage(data: bytearray, rng: random.Random) -> tuple[str, int]:
    at, way = rng.randrange(max(1, len(data))), rng.randrange(6)
    if not data:
        data += b"\0"
    if way <= 2:
        bit = rng.randrange(8)
        data[at] ^= 1 << bit
        return f"bit {bit} of byte {at} of {len(data)}", at
    if way == 3:
        del data[at:]
        return f"cut at byte {at}", at
    if way == 4:
        data[at:at] = rng.randbytes(rng.choice((1, 3, 100)))
        return f"bytes put in at {at}", at
    data[at : at + 16] = rng.choice((b"\0", b"\xff", b'"', b"9", b"\n", b",")) * 16
    return f"16 bytes written at {at}", at


def _in_a_page(file: Path, at: int) -> bool:
    """Whether a place of a parquet file is among values; a page's own header has no checksum."""
    import pyarrow.parquet as pq

    header = 120
    footer = pq.ParquetFile(file).metadata
    groups = [footer.row_group(g) for g in range(footer.num_row_groups)]
    for column in (group.column(i) for group in groups for i in range(group.num_columns)):
        begin = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
        if begin + header <= at < column.data_page_offset or (
            column.data_page_offset + header <= at < begin + column.total_compressed_size
        ):
            return True
    return False


def edit(document: Any, rng: random.Random) -> str:
    """Change one value somewhere in JSON, or take it out."""
    places = list(_places(document))
    holder, key = rng.choice(places)
    if rng.random() < 0.2:
        del holder[key]
        return f"{key!r} taken out"
    old = holder[key]
    holder[key] = _changed(old, rng)
    return f"{key!r} from {str(old)[:30]!r} to {str(holder[key])[:30]!r}"


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def _changed(old: Any, rng: random.Random) -> Any:
    if isinstance(old, bool) or old is None or rng.random() < 0.5:
        return rng.choice(ODD)
    if isinstance(old, int | float):
        return rng.choice((-old, old + 1, old * 1000, old * 10**9, old / 3))
    return old[: len(old) // 2] if isinstance(old, str | list) else rng.choice(ODD)


def edit_arrays(file: Path, rng: random.Random) -> str:
    """Another type, shape or value of one array, in a file that is right in itself."""
    with open(file, "rb", buffering=0) as stream:
        arrays = read_tensors(HashingReader(stream, str(file)), file.stat().st_size)
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    changes: tuple[Callable[[], np.ndarray], ...] = (
        lambda: array[: len(array) // 2] if array.ndim else array,
        lambda: np.concatenate([array, array]) if array.ndim else array,
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: np.zeros(0, array.dtype),
        lambda: array.astype(rng.choice(ARRAY_TYPES)),
        lambda: np.full_like(array, np.nan if array.dtype.kind == "f" else -1 if array.dtype.kind == "i" else 1),
        lambda: np.full_like(array, np.inf if array.dtype.kind == "f" else 100),
    )
    number = rng.randrange(len(changes) + 1)
    if number == len(changes):
        del arrays[name]
    else:
        with np.errstate(all="ignore"):
            arrays[name] = np.ascontiguousarray(changes[number]())
    writer = HashingWriter(lambda stream: write_tensors(stream, arrays, file.name))
    with open(file, "wb") as stream:
        writer(stream)
    return f"{file.name}: array {name}, change {number}"


def reseal_archive(place: Path, rng: random.Random) -> str:
    file = rng.choice(sorted(place.iterdir()))
    manifest = json.loads((place / MANIFEST).read_text())
    manifest.pop("sha256")
    if file.name == MANIFEST:
        told = edit(manifest, rng)
    elif file.suffix == ".json":
        document = json.loads(file.read_text())
        told = edit(document, rng)
        file.write_text(json.dumps(document))
    else:
        told = edit_arrays(file, rng)
    if file.name != MANIFEST:
        data = file.read_bytes()
        manifest["files"][file.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (place / MANIFEST).write_bytes(_sealed(manifest))
    return f"sealed again, {file.name}: {told}"


def reseal_checkpoint(place: Path, rng: random.Random) -> str:
    [file] = place.glob("*.json")
    document = json.loads(file.read_text())
    document.pop("sha256")
    if rng.random() < 0.3:
        arrays = file.with_suffix(".safetensors")
        told, data = edit_arrays(arrays, rng), arrays.read_bytes()
        document["arrays"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    else:
        part = rng.choice(
            [document, document["extra"], document["extra"]["prepared"], document["extra"]["route"] or document]
        )
        told = edit(part, rng)
    file.write_bytes(_sealed(document))
    return f"sealed again: {told}"


def _sealed(document: Any) -> bytes:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return json.dumps({**document, "sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


# -- one after the other


def judge(ended: Ended, result: str, expected: str, guarded: bool) -> tuple[str, str]:
    sentences = [line for line in ended.err.splitlines() if not line.startswith("streamrf: warning")]
    if ended.code == 1 or "Traceback" in ended.err:
        return "unexpected", " | ".join(sentences)[-400:]
    if ended.code:
        return ("refused", "") if len(sentences) >= 1 else ("unexpected", f"exit code {ended.code} without a word")
    if result == expected:
        return "same", ""
    return ("silent", "another result") if guarded else ("other", "")


def one(kind: str, whole: Path, work: Path, number: int, expected: str, budget: int) -> dict[str, str]:
    folder = work / "now"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    rng = random.Random(f"{kind} {number}")
    place = folder / PLACES[kind]
    told, guarded = change(kind, place, rng)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins again
    ended, result = use(kind, folder, budget)
    outcome, why = judge(ended, result, expected, guarded)
    if high_water_mark("self") > 2 * budget:
        outcome, why = "memory", f"{high_water_mark('self') / 1e9:.1f} GB"
    return {"outcome": outcome, "told": re.sub(r"\S*/now/", "", f"{told}: {why}") if why else told}


PLACES = {"model": "t.model", "statistics": "t.model", "checkpoint": "saved", "zarr": "t.zarr", "parquet": "t.parquet",
          "npy": "X.npy", "csv": "t.csv", "jsonl": "t.jsonl"}  # fmt: skip


def main(kind: str, folder: str, first: str, stop: str, budget: str) -> None:
    allowed, work = int(budget), Path(tempfile.mkdtemp(dir=folder))
    tempfile.tempdir = str(work)  # logs of unexpected errors
    resource.setrlimit(resource.RLIMIT_DATA, (8 * allowed, 8 * allowed))
    try:
        whole = work / "now"  # checkpoints know the names of their files, and copies get the same place
        write_files(kind, whole)
        kept = work / "whole"
        shutil.copytree(whole, kept)
        ended, expected = use(kind, whole, allowed)
        _done(ended)
        print(json.dumps({"ready": expected}), flush=True)
        for number in range(int(first), int(stop)):
            print(json.dumps(one(kind, kept, work, number, expected, allowed)), flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
