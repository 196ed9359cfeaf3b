"""Models of tables: trained on text, dates and gaps, they find columns by name in any shard, file or stream."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from commands import FAST, PROJECT, done, streamrf

from streamrf.cli import main
from streamrf.data.open import open_source
from streamrf.data.source import Span
from streamrf.models.export import export_model
from streamrf.models.export.numpy_script import write_script
from streamrf.models.model import Model
from streamrf.support import errors
from streamrf.training.update.statistics import Statistics

ROWS = 900


def make_table(seed: int, rows: int = ROWS) -> pa.Table:
    rng = np.random.default_rng(seed)
    area, city = rng.uniform(20, 120, rows), rng.choice(["Rome", "Oslo", "Bern"], rows)
    days = rng.integers(0, 20_000, rows)
    rent = area / 10 + (city == "Oslo") * 3 + days / 5000 + rng.normal(0, 0.1, rows)
    return pa.table(
        {
            "area": pa.array(area, mask=rng.random(rows) < 0.1),
            "city": pa.array(city.tolist()),
            "built": pa.array(days.astype(np.int32)).cast(pa.date32()),
            "floor": rng.integers(0, 9, rows),
            "size": pa.array(np.where(rent > np.median(rent), "large", "small").tolist()),
            "rent": rent,
        }
    )


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("tables")
    for name, seed in (("one", 0), ("two", 1), ("new", 2)):
        pq.write_table(make_table(seed), place / f"{name}.parquet", row_group_size=300)
    train = ("train", place / "one.parquet", "--missing", "median", *FAST, "--quiet")
    done(*train, "--target", "rent", "--exclude", "size", "--out", place / "rent.model")
    done(*train, "--target", "size", "--exclude", "rent", "--out", place / "size.model")
    return place


def predicted(shelf: Path, model: str, data: object, out: str, *more: object) -> pa.Table:
    done("predict", shelf / model, data, "--out", shelf / out, "--overwrite", "--quiet", *more)
    return pa.csv.read_csv(shelf / out)


def test_the_model_keeps_the_coding_and_the_target(shelf):
    model = Model.load(shelf / "rent.model")
    assert model.columns.names == ["area", "city", "built", "floor"]
    assert model.feature_names == (
        "area", "area is missing", "city=Bern", "city=Oslo", "city=Rome", "built", "built weekday sin",
        "built weekday cos", "built day of year sin", "built day of year cos", "floor",
    )  # fmt: skip
    assert model.target_names == ("rent",)
    found = done("evaluate", shelf / "rent.model", shelf / "two.parquet", "--json").json
    assert found["r2"] > 0.5  # four circles of a date that mean nothing are among nine inputs


def test_other_orders_types_and_more_columns_make_no_difference(shelf, tmp_path):
    table = make_table(2)
    wanted = predicted(shelf, "rent.model", shelf / "new.parquet", "a.csv")
    other = table.select(["rent", "floor", "built", "city", "size", "area"])
    other = other.set_column(2, "built", table["built"].cast(pa.timestamp("ms")))
    other = other.set_column(3, "city", table["city"].combine_chunks().dictionary_encode())
    pq.write_table(other, tmp_path / "other.parquet")
    assert predicted(shelf, "rent.model", tmp_path / "other.parquet", "b.csv") == wanted


@pytest.mark.parametrize("name", ["new.csv", "new.csv.gz", "new.jsonl", "new.arrow", "new.feather"])
def test_files_of_rows_are_predicted_as_parquet_is(shelf, name, tmp_path):
    table = make_table(2).drop_columns(["rent", "size"])
    write_rows(table, tmp_path / name)
    for model, more in (("rent.model", ()), ("size.model", ("--proba",))):
        wanted = predicted(shelf, model, shelf / "new.parquet", "a.csv", *more)
        assert predicted(shelf, model, tmp_path / name, "b.csv", *more) == wanted


def write_rows(table: pa.Table, path: Path) -> None:
    form = path.name.split(".")[1]
    if form == "csv":
        with pa.output_stream(path, compression="detect") as file:
            pa.csv.write_csv(table, file)
    elif form == "jsonl":
        rows = [{k: str(v) if k == "built" else v for k, v in row.items()} for row in table.to_pylist()]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif form == "arrow":
        with pa.ipc.new_stream(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=100)
    else:
        pa.feather.write_feather(table, str(path))


@pytest.mark.parametrize("form", ["csv", "jsonl", "arrow"])
def test_standard_input_to_standard_output(shelf, form, tmp_path, monkeypatch):
    write_rows(make_table(2).drop_columns(["rent", "size"]), tmp_path / f"new.{form}")
    wanted = predicted(shelf, "size.model", shelf / "new.parquet", "a.csv")["prediction"].to_pylist()
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / f"new.{form}").read_bytes())))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out))
    main(["predict", str(shelf / "size.model"), "-", "--out", "-", "--format", form])
    if form == "csv":
        found = pa.csv.read_csv(io.BytesIO(out.getvalue()))["prediction"].to_pylist()
    elif form == "arrow":
        found = pa.ipc.open_stream(out.getvalue()).read_all()["prediction"].to_pylist()
    else:
        found = [json.loads(line)["prediction"] for line in out.getvalue().splitlines()]
    assert found == wanted


def code_rows(rows: int) -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    return [
        {
            "zip": f"{rng.choice([1067, 4109, 80331]):05}",
            "grade": f"{rng.choice([1.0, 1.5, 2.0]):.2f}",
            "lift": str(bool(rng.integers(2))),
            "pets": rng.choice(["true", "false"]),
            "seen": f"2024-0{rng.integers(1, 9)}-01T10:00:00+02:00",
            "area": rng.uniform(20, 90),
        }
        for _ in range(rows)
    ]


@pytest.fixture(scope="module")
def codes(tmp_path_factory) -> Path:
    """A CSV file whose columns all turn out to be something else than text, and a model of it."""
    place = tmp_path_factory.mktemp("codes")
    rows = code_rows(300)
    rents = [row["area"] / 10 + 3 * (row["zip"] == "01067") + 2 * (row["pets"] == "true") for row in rows]
    with open(place / "t.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([[*rows[0], "rent"], *([*row.values(), rent] for row, rent in zip(rows, rents, strict=True))])
    done("convert", place / "t.csv", place / "t.parquet", "--quiet")
    categorical = ("--categorical", "zip,grade,lift")
    done("train", place / "t.parquet", "--target", "rent", *categorical, *FAST, "--quiet", "--out", place / "m.model")
    return place


def test_the_csv_file_that_became_the_training_table_is_predicted_as_the_table_is(codes):
    wanted = predicted(codes, "m.model", codes / "t.parquet", "a.csv")
    found = done("predict", codes / "m.model", codes / "t.csv", "--out", codes / "b.csv", "--json").json
    assert found["unknown_levels"] == {}
    assert pa.csv.read_csv(codes / "b.csv") == wanted


def test_objects_give_numbers_of_categories_as_numbers_or_text(codes, tmp_path):
    wanted = predicted(codes, "m.model", codes / "t.parquet", "a.csv")
    for form in (str, json.loads):
        rows = [
            {**row, "grade": form(row["grade"]), "lift": form(row["lift"].lower())} | {"pets": json.loads(row["pets"])}
            for row in code_rows(300)
        ]
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = done("predict", codes / "m.model", tmp_path / "t.jsonl", "--out", codes / "c.csv", "--json",
                     "--overwrite").json  # fmt: skip
        assert found["unknown_levels"] == {}
        assert pa.csv.read_csv(codes / "c.csv") == wanted


def test_a_stray_word_among_truth_values_is_the_one_that_is_named(codes, tmp_path):
    lines = (codes / "t.csv").read_text().splitlines()[:4]
    lines[2] = lines[2].replace("true", "maybe").replace("false", "maybe")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    answer = streamrf("predict", codes / "m.model", tmp_path / "t.csv", "--out", tmp_path / "o.csv")
    assert re.search("'maybe' in .*'pets' .*line 3.*not a number", answer.sentence), answer.sentence


def test_a_key_that_is_misspelled_or_left_out_is_named_with_its_line(shelf, tmp_path):
    """It used to be taken for a missing value, and gave the prediction of an empty row."""
    full = '{"area": null, "city": "Rome", "built": "2001-01-01", "floor": 2}\n'
    for line, sentence in (
        (full.replace("area", "Area"), "no key 'area' in line 2 of .*'Area'.*did you mean 'Area'.*as null"),
        (full.replace('"floor": 2', '"more": [1]'), "no key 'floor' in line 2 of "),
    ):
        (tmp_path / "t.jsonl").write_text(full + line)
        answer = streamrf("predict", shelf / "rent.model", tmp_path / "t.jsonl", "--out", tmp_path / "o.csv")
        assert answer.code == errors.DataError.exit_code
        assert re.search(sentence, answer.sentence), answer.sentence
    (tmp_path / "t.jsonl").write_text(full + full)
    done("predict", shelf / "rent.model", tmp_path / "t.jsonl", "--out", tmp_path / "o.csv", "--quiet")


def test_rows_are_answered_as_they_come(shelf):
    """A pipeline that waits for each answer before it sends the next row."""
    process = subprocess.Popen(
        [sys.executable, "-m", "streamrf", "predict", str(shelf / "rent.model"), "-", "--out", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=PROJECT, bufsize=0,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"floor,city,area,built\n1,Rome,50,2001-01-01\n")
    assert process.stdout.readline() == b"prediction\n"
    first = process.stdout.readline()
    process.stdin.write(b"1,Oslo,50,2001-01-01\n")
    second = process.stdout.readline()
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    assert float(second) != float(first)


SCRIPT = """
import io, sys
from streamrf.support import memory
from streamrf.models.model import Model
from streamrf.data.writers import write_blocks
from streamrf.data.writers.encoded import CsvStream
from streamrf.models.predict import PredictedColumns
from streamrf.models.predict_stream import StreamBlocks, stream_columns
from streamrf.data.readers.csv import CsvBatches
from streamrf.support.threads import Threads
memory.limit_heaps()

class Rows(io.RawIOBase):
    def __init__(self, blocks):
        self.blocks, self.left = blocks, b"floor,city,area,built\\n"
    def read1(self, size):
        if not self.left and self.blocks:
            self.blocks, self.left = self.blocks - 1, LINES
        data, self.left = self.left[:size], self.left[size:]
        return data

class Nowhere:
    count = 0
    def write(self, data):
        self.count += data.count(b"\\n")
    def flush(self):
        pass

LINES = b"1,Rome,50.25,2001-01-01\\n2,Oslo,,1999-12-31\\n" * 3000
model = Model.load(sys.argv[1])
def run(blocks):
    out = Nowhere()
    with Threads(1) as threads, CsvStream(out, [("prediction", "f8")]) as writer:
        tables = CsvBatches.arriving(Rows(blocks), stream_columns(model), "the test")
        rows = write_blocks(PredictedColumns(model, False), StreamBlocks(model, tables, "the test"), writer, threads)
    assert out.count == rows + 1 == 6000 * blocks + 1
run(2)
before = memory.resident()
open("/proc/self/clear_refs", "w").write("5")
run(60)
print(len(LINES) * 60, memory.peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_stream_takes_constant_memory(shelf):
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(shelf / "rent.model")],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    size, grown = map(int, ran.stdout.split())
    assert size > 7_000_000
    assert grown < 3_000_000


def test_unknown_levels_are_counted_and_said(shelf, tmp_path):
    table = make_table(2)
    cities = pa.array(["Paris" if i < 7 else city for i, city in enumerate(table["city"].to_pylist())])
    pq.write_table(table.set_column(1, "city", cities), tmp_path / "p.parquet")
    found = done("predict", shelf / "rent.model", tmp_path / "p.parquet", "--out", tmp_path / "p.csv", "--json").json
    assert found["unknown_levels"] == {"city": 7}
    said = done("evaluate", shelf / "rent.model", tmp_path / "p.parquet").err
    assert "values that training had not seen: 7 in 'city'" in said


def test_update_joins_a_shard_by_the_same_coding(shelf, tmp_path):
    data = (shelf / "one.parquet", "--exclude", "size", "--target", "rent", "--missing", "median", *FAST, "--quiet")
    done("train", *data, "--out", tmp_path / "m.model")
    done("update", tmp_path / "m.model", shelf / "two.parquet", "--out", tmp_path / "both.model", "--quiet")
    model = Model.load(tmp_path / "both.model")
    assert model.metadata["rows"] == 2 * ROWS
    assert model.columns == Model.load(shelf / "rent.model").columns
    done("forget", tmp_path / "both.model", shelf / "two.parquet", "--out", tmp_path / "back.model", "--quiet")
    before, after = (Model.load(tmp_path / f"{name}.model").metadata for name in ("m", "back"))
    assert before["statistics_digest"] == after["statistics_digest"]


TABLE = ("--exclude", "size", "--target", "rent", "--missing", "median", "--categorical", "floor", *FAST, "--quiet")


def rare_table() -> pa.Table:
    """With a city and a median of its own."""
    table = make_table(1)
    table = table.set_column(0, "area", pa.array(np.linspace(500, 600, ROWS)))
    return table.set_column(1, "city", pa.array(["Timbuktu", *table["city"].to_pylist()[1:]]))


def test_a_strict_forget_learns_the_coding_anew(shelf, tmp_path):
    pq.write_table(rare_table(), tmp_path / "rare.parquet")
    done("train", shelf / "one.parquet", tmp_path / "rare.parquet", *TABLE, "--out", tmp_path / "both.model")
    done("train", shelf / "one.parquet", *TABLE, "--out", tmp_path / "alone.model")
    assert b"Timbuktu" in (tmp_path / "both.model" / "model.json").read_bytes()
    stays = ("--strict", "--data", shelf / "one.parquet", "--threads", 1)
    found = done("forget", tmp_path / "both.model", tmp_path / "rare.parquet", *stays, "--json").json
    assert found["removed"] == ROWS
    assert b"Timbuktu" not in (tmp_path / "both.model" / "model.json").read_bytes()
    after, alone = (Model.load(tmp_path / f"{name}.model") for name in ("both", "alone"))
    assert after.columns.to_json() == alone.columns.to_json()
    assert after.metadata["statistics_digest"] == alone.metadata["statistics_digest"]
    assert after.ledger == alone.ledger


def test_a_coding_that_nobody_knows_how_to_learn_again_is_not_forgotten_strictly(shelf, tmp_path):
    """Models from before that was kept."""
    data = [str(shelf / "one.parquet"), str(shelf / "two.parquet")]
    done("train", *data, *TABLE, "--out", tmp_path / "m.model")
    old = Statistics.load(tmp_path / "m.model")
    pipeline = old.prepared.pipeline
    coded = replace(pipeline, columns=replace(pipeline.columns, handling=None))
    old.prepared = replace(old.prepared, pipeline=coded)
    old.solve(old.ridge).save(tmp_path / "old.model", state=old.state)
    stays = ("--strict", "--data", data[1], "--threads", 1, "--quiet")
    answer = streamrf("forget", tmp_path / "old.model", data[0], *stays)
    assert answer.code == errors.InputError.exit_code
    assert "does not say how its columns were to be coded: retrain" in answer.sentence


def test_sums_of_other_codings_do_not_add(shelf, tmp_path):
    """The median of another table fills the gaps with another number."""
    data = ("--exclude", "size", "--target", "rent", "--missing", "median", *FAST, "--quiet")
    for name in ("one", "two"):
        done("train", shelf / f"{name}.parquet", *data, "--out", tmp_path / f"{name}.model")
    one, two = Statistics.load(tmp_path / "one.model"), Statistics.load(tmp_path / "two.model")
    coded = replace(one.prepared.pipeline, columns=two.prepared.columns)
    two.prepared = replace(one.prepared, pipeline=coded)  # all else being equal
    with pytest.raises(errors.MismatchError, match="column 'area' became numbers in another way"):
        one + two


def test_zarr_of_the_table_trains_to_the_same_bits_and_predicts_from_raw_rows(shelf, tmp_path):
    done(
        "convert", shelf / "one.parquet", tmp_path / "one.zarr", "--target", "rent", "--exclude", "size", "--missing",
        "median", "--chunk-rows", 250, "--quiet",
    )  # fmt: skip
    done("train", tmp_path / "one.zarr", *FAST, "--quiet", "--out", tmp_path / "z.model")
    made, direct = Model.load(tmp_path / "z.model"), Model.load(shelf / "rent.model")
    assert made.metadata["statistics_digest"] == direct.metadata["statistics_digest"]
    assert made.columns == direct.columns
    wanted = predicted(shelf, "rent.model", shelf / "new.parquet", "a.csv")
    done("predict", tmp_path / "z.model", shelf / "new.parquet", "--out", tmp_path / "z.csv", "--quiet")
    assert pa.csv.read_csv(tmp_path / "z.csv") == wanted


def test_exports_take_raw_columns(shelf, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    from streamrf.models.export.onnx_model import write_onnx

    model, table = Model.load(shelf / "rent.model"), make_table(2, 300)
    unknown = pa.array(["Paris", None, *table["city"].to_pylist()[2:]])
    table = table.set_column(1, "city", unknown)
    pq.write_table(table, tmp_path / "t.parquet")
    wanted = predicted(shelf, "rent.model", tmp_path / "t.parquet", "a.csv")["prediction"].to_numpy()

    write_onnx(export_model(model), tmp_path / "m.onnx")
    area = np.array([np.nan if v is None else v for v in table["area"].to_pylist()])
    city = np.array([v or "" for v in table["city"].to_pylist()], dtype=object)
    days = table["built"].cast(pa.int32()).to_numpy()
    columns = {"area": area, "built": days, "floor": table["floor"].to_numpy()}
    feed = {name: values.astype(np.float64)[:, None] for name, values in columns.items()} | {"city": city[:, None]}
    (found,) = ort.InferenceSession(str(tmp_path / "m.onnx")).run(None, feed)
    assert np.abs(found[:, 0] - wanted).max() < 1e-5

    write_script(export_model(model), tmp_path / "m.py")
    space = {"__file__": str(tmp_path / "m.py"), "__name__": "script"}
    exec(compile((tmp_path / "m.py").read_text(), "m.py", "exec"), space)
    raw = {name: table[name].to_pylist() for name in model.columns.names}
    assert np.abs(space["predict"](raw)[:, 0] - wanted).max() < 1e-5


def test_models_of_arrays_take_columns_by_place(tmp_path):
    X = np.random.default_rng(0).standard_normal((300, 3)).astype(np.float32)
    np.savez(tmp_path / "t.npz", X=X, y=X[:, 0] * X[:, 1])
    done("convert", tmp_path / "t.npz", tmp_path / "t.zarr", "--quiet")
    done("train", tmp_path / "t.zarr", *FAST, "--quiet")
    np.savetxt(tmp_path / "t.csv", X, delimiter=",", fmt="%.17g")
    done("predict", tmp_path / "t.model", tmp_path / "t.zarr", "--out", tmp_path / "a.csv", "--quiet")
    done("predict", tmp_path / "t.model", tmp_path / "t.csv", "--out", tmp_path / "b.csv", "--quiet")
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()
    (tmp_path / "wide.csv").write_text("1,2,3,4\n")
    answer = streamrf("predict", tmp_path / "t.model", tmp_path / "wide.csv", "--out", tmp_path / "c.csv")
    assert "has 4 columns, and the model was trained on 3" in answer.sentence


ROW = "area,city,built,floor\n50,Rome,2001-01-01,1\n"
FAULTS = {
    "a column is missing": ("area,built,floor\n50,2001-01-01,1\n", errors.DataError, "no column 'city' in .*trained"),
    "text for a number": (ROW + "51,Oslo,2001-01-01,first\n", errors.DataError, "'first' in .*'floor' .*line 3.*num"),
    "text for a date": (ROW + "51,Oslo,yesterday,1\n", errors.DataError, "'yesterday' in .*'built' .*line 3.*2024-05"),
    "ragged": (ROW + "1,2\n", errors.DataError, "line 3 .* has 2 fields, and the first line has 4"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_faults_in_rows_are_one_sentence_and_leave_nothing(shelf, case, tmp_path):
    text, error, pattern = FAULTS[case]
    (tmp_path / "t.csv").write_text(text)
    answer = streamrf("predict", shelf / "rent.model", tmp_path / "t.csv", "--out", tmp_path / "o.csv")
    assert answer.code == error.exit_code
    assert re.search(pattern, answer.sentence), answer.sentence
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-", "x.csv", "--out", "o.csv"], "standard input"),
        (["-", "--out", "-", "--json"], "both write to standard output"),
        (["x.csv", "--out", "o.zarr"], "number of rows beforehand"),
    ],
)
def test_streams_that_cannot_be(shelf, arguments, words):
    answer = streamrf("predict", shelf / "rent.model", *arguments)
    assert answer.code == errors.InputError.exit_code
    assert words in answer.sentence


def test_what_cannot_be_used_is_left_out_and_said_in_one_sentence(tmp_path):
    """An identifier, a list, bytes and an empty column, with names that need quotes: all at once, and it trains."""
    table = make_table(0).append_column("flat id", pa.array([f"flat {i}" for i in range(ROWS)]))
    table = table.append_column("rooms", pa.array([[1, 2]] * ROWS)).append_column("photo", pa.array([b"x"] * ROWS))
    table = table.append_column("nothing", pa.nulls(ROWS))
    pq.write_table(table, tmp_path / "t.parquet")
    answer = done("train", tmp_path / "t.parquet", "--target", "rent", *FAST)
    said = next(line for line in answer.err.splitlines() if line.startswith("left out"))
    for words in (
        "'flat id' is an identifier: 900 different values in 900 rows", "'rooms' is neither", "(list<", "'photo' is",
        "(binary)", "'nothing' has no values", "--exclude 'rooms,photo,flat id,nothing'",
    ):  # fmt: skip
        assert words in said
    model = Model.load(tmp_path / "t.model")
    assert model.columns.names == ["area", "city", "built", "floor", "size"]
    assert [name for name, _ in model.columns.left_out] == ["rooms", "photo", "flat id", "nothing"]
    asked = streamrf(
        "train", tmp_path / "t.parquet", "--target", "rent", "--features", "area,photo,rooms", *FAST, "--overwrite"
    )
    assert asked.code == errors.DataError.exit_code
    assert "--exclude photo,rooms" in asked.err.splitlines()[-1]
    shard = open_source(tmp_path / "t.parquet", target="rent", features=["floor"])
    assert shard.read(Span(0, 2)).X.shape == (2, 1)
