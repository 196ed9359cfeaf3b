"""`streamrf convert`: every format in, zarr and parquet out, the same values, in bounded memory, or one sentence."""

from __future__ import annotations

import bz2
import csv
import gzip
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zarr
from commands import FAST, PROJECT, done, everything_in, streamrf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file

from streamrf.data.convert import chunk_rows
from streamrf.data.convert.inputs import detect
from streamrf.data.convert.outputs import gathered
from streamrf.data.meanings import IN_PARQUET, kept_meanings, meanings_in_footer
from streamrf.data.open import open_source
from streamrf.data.readers.base import line_blocks
from streamrf.data.readers.csv import NULLS as NULL_WORDS
from streamrf.data.readers.csv import CsvBatches
from streamrf.data.source import Span
from streamrf.models.model import Model
from streamrf.support import errors

ROWS = 500


@pytest.fixture(scope="module")
def table() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "a": rng.standard_normal(ROWS),
            "count": rng.integers(0, 9, ROWS),
            "colour": rng.choice(["red", "green", "blue"], ROWS),
            "day": pa.array(rng.integers(0, 20_000, ROWS), pa.int32()).cast(pa.date32()),
            "y": rng.standard_normal(ROWS),
        }
    )


@pytest.fixture(scope="module")
def numbers() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = np.where(rng.random((ROWS, 7)) < 0.5, 0, rng.standard_normal((ROWS, 7))).astype(np.float32)
    X[0], X[1, -1] = 1, 2
    return X, rng.integers(0, 3, ROWS)


CIRCLES = ("day weekday sin", "day weekday cos", "day day of year sin", "day day of year cos")


def features_of(table: pa.Table) -> np.ndarray:
    """What zarr must hold, written out."""
    colours = [[float(value == level) for level in ("blue", "green", "red")] for value in table["colour"].to_pylist()]
    days = table["day"].cast(pa.int32()).to_numpy()
    turns = [2 * np.pi * (days / period % 1) for period in (7.0, 365.2425)]
    circles = [np.rint(wave(turn) * 2.0**20) / 2.0**20 for turn in turns for wave in (np.sin, np.cos)]
    return np.column_stack([table["a"].to_numpy(), table["count"].to_numpy(), colours, days, *circles])


def write_csv(table: pa.Table, path: Path) -> None:
    opener = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opener(path, "wb") as file:
        pa.csv.write_csv(table, file)


WRITERS = {
    "t.csv": write_csv,
    "t.csv.gz": write_csv,
    "t.csv.bz2": write_csv,
    "t.parquet": lambda table, path: pq.write_table(table, path, row_group_size=130),
    "t.feather": lambda table, path: pa.feather.write_feather(table, str(path), chunksize=77),
    "t.arrow": lambda table, path: write_stream(table, path),
    "t.jsonl": lambda table, path: path.write_text(
        "".join(
            json.dumps({k: str(v) if k == "day" else v for k, v in row.items()}) + "\n" for row in table.to_pylist()
        )
    ),
}


def write_stream(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=99)


@pytest.mark.parametrize("name", WRITERS)
def test_tables_to_zarr_and_parquet(name, table, tmp_path):
    WRITERS[name](table, tmp_path / name)
    found = done("convert", tmp_path / name, tmp_path / "o.zarr", "--target", "y", "--chunk-rows", 64, "--json").json
    source = open_source(tmp_path / "o.zarr")
    block = source.read(Span(0, ROWS))
    assert np.array_equal(block.X, features_of(table))
    assert np.array_equal(block.y, table["y"].to_numpy())
    assert source.feature_names == ("a", "count", "colour=blue", "colour=green", "colour=red", "day", *CIRCLES)
    assert source.target_names == ("y",)
    assert source.columns.names == ["a", "count", "colour", "day"]
    assert [len(chunk) for chunk in source.chunks()] == [64] * 7 + [ROWS - 7 * 64]
    assert found["rows"] == ROWS
    assert found["chunk_rows"] == 64

    done("convert", tmp_path / name, tmp_path / "o.parquet", "--chunk-rows", 64, "--quiet")
    written = pq.ParquetFile(tmp_path / "o.parquet")
    assert written.metadata.row_group(0).num_rows == 64
    back = written.read()
    assert back.column_names == table.column_names
    assert [back[c].cast(table[c].type).to_pylist() for c in back.column_names] == [
        table[c].to_pylist() for c in table.column_names
    ]


def libsvm(numbers, path, **options):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        dump_svmlight_file(*numbers, file, **options)


def npz(numbers, path, save=np.savez):
    save(path, X=numbers[0], y=numbers[1])


def hdf5(numbers, path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_dataset("X", data=numbers[0], chunks=(50, 3), compression="gzip")
        file["y"] = numbers[1]


def npy(numbers, path):
    path.mkdir()
    np.save(path / "X.npy", numbers[0])
    np.save(path / "y.npy", numbers[1])


MATRICES = {
    "zero.libsvm": lambda numbers, path: libsvm(numbers, path, zero_based=True),
    "one.svm.gz": lambda numbers, path: libsvm(numbers, path, zero_based=False, comment="made here"),
    "nameless": lambda numbers, path: libsvm(numbers, path, zero_based=False, query_id=np.arange(ROWS) // 3),
    "t.npz": npz,
    "packed.npz": lambda numbers, path: npz(numbers, path, np.savez_compressed),
    "t.h5": hdf5,
    "folder": npy,
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_to_zarr_and_parquet(name, numbers, tmp_path):
    MATRICES[name](numbers, tmp_path / name)
    for out in ("o.zarr", "o.parquet"):
        done("convert", tmp_path / name, tmp_path / out, "--chunk-rows", 90, "--quiet")
        source = open_source(tmp_path / out)
        block = source.read(Span(0, ROWS))
        assert np.array_equal(block.X, numbers[0])
        assert np.array_equal(block.y, numbers[1])
        assert block.y.dtype.kind == "i"
        assert len(source.chunks()) == 6


def test_zarr_is_cut_anew(numbers, tmp_path):
    npz(numbers, tmp_path / "t.npz")
    done("convert", tmp_path / "t.npz", tmp_path / "a.zarr", "--chunk-rows", 90, "--quiet")
    done("convert", tmp_path / "a.zarr", tmp_path / "b.zarr", "--chunk-rows", 200, "--dtype", "float64", "--quiet")
    source = open_source(tmp_path / "b.zarr")
    assert np.array_equal(source.read(Span(0, ROWS)).X, numbers[0])
    assert (len(source.chunks()), source.x_dtype) == (3, np.float64)


def test_csv_without_names_and_with_other_marks(tmp_path):
    (tmp_path / "t.data").write_text("1.5;2;-\n2.5; ;3\n?;4;5\n")
    done("convert", tmp_path / "t.data", tmp_path / "t.parquet", "--null", "-", "--quiet")
    assert pq.read_table(tmp_path / "t.parquet").to_pydict() == {
        "c0": [1.5, 2.5, None],
        "c1": [2, None, 4],
        "c2": [None, 3, 5],
    }
    done("convert", tmp_path / "t.data", tmp_path / "t.zarr", "--null", "-", "--missing", "median", "--quiet")
    assert zarr.open(tmp_path / "t.zarr")["X"][:].tolist() == [
        [1.5, 0, 2, 0, 4, 1], [2.5, 0, 3, 1, 3, 0], [2, 1, 4, 0, 5, 0],
    ]  # fmt: skip
    done("convert", tmp_path / "t.data", tmp_path / "k.zarr", "--null", "-", "--missing", "keep", "--quiet")
    assert np.isnan(zarr.open(tmp_path / "k.zarr")["X"][:]).sum() == 3


def test_types_are_told_from_all_rows(tmp_path):
    lines = [f"{i},{i},x\n" for i in range(300_000)]
    (tmp_path / "t.csv").write_text("late float,late text,text\n" + "".join(lines) + "0.5,many,x\n")
    done("convert", tmp_path / "t.csv", tmp_path / "t.parquet", "--quiet")
    assert [str(kind) for kind in pq.read_schema(tmp_path / "t.parquet").types] == ["double", "string", "string"]
    answer = streamrf("convert", tmp_path / "t.csv", tmp_path / "t.zarr", "--quiet")
    assert answer.code == errors.DataError.exit_code
    assert "'late text'" in answer.sentence
    assert "numbers but for 'many' in line 300,002" in answer.sentence


FAULTS = {
    "ragged": ("a,b\n1,2\n3,4\n5\n", [], errors.DataError, "line 4 of .*t.csv has 1 fields, and the first line has 2"),
    "no rows": ("a,b\n", [], errors.DataError, "has no rows"),
    "nothing": ("", [], errors.DataError, "has no rows"),
    "names twice": ("a,a\n1,2\n", [], errors.DataError, "names the column 'a' twice"),
    "no such target": ("a,b\n1,2\n", ["--target", "z"], errors.DataError, "no column 'z'"),
    "missing": (
        "a,b\n1,2\n,3\n", ["--target", "b", "--missing", "error"], errors.DataError, "row 1 of .* 'a'.*--missing median"
    ),
    "missing target": ("a,b\n1,2\n3,\n", ["--target", "b"], errors.DataError, "row 1 of .* has no target 'b'"),
    "free text": (
        "a,t\n" + "".join(f"1,word {i}\n" for i in range(200)), [], errors.DataError, "'t' .*200 diff.*100.*--exclude t"
    ),
    "text refused": ("a,t\n1,x\n", ["--categories", "error"], errors.DataError, "'t' .*not numeric.*--categories"),
    "no memory": ("a,b\n1,2\n", ["--memory", "1MB"], errors.BudgetError, "about .*B, and --memory allows 1.00 MB"),
    "no chunk": ("a,b\n1,2\n", ["--chunk-rows", "0"], errors.InputError, "--chunk-rows 0"),
    "for another format": ("a,b\n1,2\n", ["--n-features", "3"], errors.InputError, "--n-features is about libsvm"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_faults_of_csv_are_one_sentence_and_leave_nothing(case, tmp_path):
    text, options, error, pattern = FAULTS[case]
    (tmp_path / "t.csv").write_text(text)
    answer = streamrf("convert", tmp_path / "t.csv", tmp_path / "t.zarr", "--quiet", *options)
    assert answer.code == error.exit_code, answer.err
    assert_matches(pattern, answer.sentence)
    assert everything_in(tmp_path) == {"t.csv"}


def assert_matches(pattern, text):
    assert re.search(pattern, text), text


def test_text_that_is_not_utf8_is_told(tmp_path):
    (tmp_path / "t.csv").write_bytes("name,a\nMünchen,1\n".encode("latin-1"))
    answer = streamrf("convert", tmp_path / "t.csv", tmp_path / "t.zarr", "--quiet")
    assert answer.code == errors.DataError.exit_code
    assert "not UTF-8 text (near line 2)" in answer.sentence


def test_other_faults(tmp_path, numbers):
    (tmp_path / "bad.libsvm").write_text("1 1:0.5\n0 2:1 3:x\n")
    assert "line 2" in streamrf("convert", tmp_path / "bad.libsvm", tmp_path / "o.zarr", "--quiet").sentence
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": 2\n')
    assert "line 2" in streamrf("convert", tmp_path / "bad.jsonl", tmp_path / "o.zarr", "--quiet").sentence
    np.savez(tmp_path / "other.npz", A=numbers[0])
    assert "no array 'X'" in streamrf("convert", tmp_path / "other.npz", tmp_path / "o.zarr", "--quiet").sentence
    np.savez(tmp_path / "columns.npz", X=np.asfortranarray(numbers[0]))
    assert "Fortran" in streamrf("convert", tmp_path / "columns.npz", tmp_path / "o.zarr", "--quiet").sentence
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 9999)[:-30])
    assert (
        "truncated or corrupt" in streamrf("convert", tmp_path / "cut.csv.gz", tmp_path / "o.zarr", "--quiet").sentence
    )
    assert "does not exist" in streamrf("convert", tmp_path / "no.csv", tmp_path / "o.zarr").sentence
    npz(numbers, tmp_path / "t.npz")
    assert "ending" in streamrf("convert", tmp_path / "t.npz", tmp_path / "o.txt").sentence
    done("convert", tmp_path / "t.npz", tmp_path / "o.zarr", "--quiet")
    again = streamrf("convert", tmp_path / "t.npz", tmp_path / "o.zarr", "--quiet")
    assert again.code == errors.ExistsError.exit_code
    done("convert", tmp_path / "t.npz", tmp_path / "o.zarr", "--quiet", "--overwrite")


SIZE, LIMIT = 60_000_000, 40_000_000
SCRIPT = """
import sys
from streamrf.support import memory
from streamrf.data.convert import Conversion, convert
from streamrf.data.readers import base as lines
memory.limit_heaps()
lines.line_blocks.__kwdefaults__["size"] = 1 << 17  # smaller blocks of text, as the file is a small one
small, big, out = sys.argv[1:]
convert(small, out, Conversion(chunk_rows=1000), overwrite=True)  # libraries are loaded, code is warm
before = memory.resident()
open("/proc/self/clear_refs", "w").write("5")  # begin the account of the peak anew
made = convert(big, out, Conversion(chunk_rows=8000), overwrite=True)
print(memory.peak() - before, made["rows"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(("form", "kind"), [("csv", "zarr"), ("libsvm", "parquet")])
def test_memory_does_not_grow_with_the_file(form, kind, tmp_path):
    """A file of 60 MB within 40 MB: memory that grew with the file would show."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((2000, 6)), rng.integers(0, 2, 2000)
    rows = [(f"{label}", *map("{:.17f}".format, values)) for values, label in zip(X, y, strict=True)]
    if form == "csv":
        head, lines = "y,a,b,c,d,e,f\n", "".join(",".join(row) + "\n" for row in rows)
    else:
        head, lines = (
            "",
            "".join(f"{row[0]} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row[1:])) + "\n" for row in rows),
        )
    (tmp_path / f"small.{form}").write_text(head + lines)
    with open(tmp_path / f"big.{form}", "w") as file:
        file.write(head)
        file.writelines(lines for _ in range(SIZE // len(lines)))
    paths = [tmp_path / f"small.{form}", tmp_path / f"big.{form}", tmp_path / f"o.{kind}"]
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, paths)], capture_output=True, text=True, cwd=PROJECT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    grown, count = map(int, ran.stdout.split())
    assert count == 2000 * (SIZE // len(lines))
    assert grown < LIMIT
    source = open_source(paths[-1])
    last = source.read(Span(source.n_rows - 2000, source.n_rows))
    assert np.allclose(last.X, X, atol=1e-7)
    assert np.array_equal(last.y, y)


WHOLE = """
import sys
from streamrf.support import memory
from streamrf.cli import main
main(sys.argv[1:])  # ends the process where it fails
print(memory.peak())
"""


def converted_within(limit, *args):
    """Run the whole command under ``--memory``; the most that its process held, libraries and all."""
    command = [sys.executable, "-c", WHOLE, "convert", *map(str, args), "--memory", str(limit), "--quiet"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout.split()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_file_larger_than_the_limit_goes_round_within_it(tmp_path):
    """CSV to parquet to zarr: more text than the whole process may hold, and values come back to the last bit."""
    limit, columns, copies = 320_000_000, 40, 260
    X = np.random.default_rng(0).standard_normal((2000, columns))
    lines = "".join(",".join(map(repr, row)) + "\n" for row in X.tolist())
    with open(tmp_path / "big.csv", "w") as file:
        file.write(",".join(f"c{j}" for j in range(columns)) + "\n")
        file.writelines(lines for _ in range(copies))
    assert (tmp_path / "big.csv").stat().st_size > limit
    options = ["--target", "c0", "--dtype", "float64"]
    assert converted_within(limit, tmp_path / "big.csv", tmp_path / "t.parquet") <= limit
    assert converted_within(limit, tmp_path / "t.parquet", tmp_path / "t.zarr", *options) <= limit
    source = open_source(tmp_path / "t.zarr")
    assert source.n_rows == 2000 * copies
    for first in (0, 2000 * (copies // 2), 2000 * (copies - 1)):
        block = source.read(Span(first, first + 2000))
        assert np.array_equal(block.X, X[:, 1:])
        assert np.array_equal(block.y, X[:, 0])


# -- the pieces


NULLS = {word.lower() for word in NULL_WORDS}
words = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), min_size=1, max_size=8)
texts = words.filter(lambda word: word.strip() == word and word.lower() not in NULLS)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(texts, st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=20))
def test_any_text_and_number_comes_through_csv(tmp_path, rows):
    """Quotes, delimiters, line breaks and all; numbers to the last bit."""
    with open(tmp_path / "t.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "number"), *((f"x{text}", repr(number)) for text, number in rows)])
    frame = CsvBatches(str(tmp_path / "t.csv"), delimiter=",")
    found = pa.Table.from_batches(frame.batches(["text", "number"]))
    assert found["text"].to_pylist() == [f"x{text}" for text, _ in rows]
    assert found["number"].to_pylist() == [number for _, number in rows]


def test_blanks_around_fields_do_not_count(tmp_path):
    (tmp_path / "t.csv").write_text("age, work, pay\n39, State-gov , 1.5\n50, ?, 2\n")
    frame = CsvBatches(str(tmp_path / "t.csv"))
    found = pa.Table.from_batches(frame.batches(["age", "work", "pay"]))
    assert found.to_pydict() == {"age": [39, 50], "work": ["State-gov", None], "pay": [1.5, 2.0]}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["a,b\n", '"q\nr",1\n', "\n", '"x""y",2\n', "1,2\n"]), max_size=30), st.integers(1, 40))
def test_blocks_are_whole_records_and_nothing_is_lost(records, size):
    class Drip:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def read(self, _: int) -> bytes:
            piece, self.data = self.data[:size], self.data[size:]
            return piece

    text = "".join(records).encode()
    blocks = list(line_blocks(Drip(text), quotes=True))
    assert b"".join(block.text for block in blocks) == text
    assert all(block.text.count(b'"') % 2 == 0 for block in blocks)
    assert [block.first for block in blocks] == [
        1 + b"".join(b.text for b in blocks[:i]).count(b"\n") for i in range(len(blocks))
    ]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 9))
def test_gathered_chunks_are_full_and_in_order(lengths, rows):
    values = np.arange(sum(lengths), dtype=np.float64)[:, None]
    cuts = np.cumsum([0, *lengths])
    chunks = list(gathered(((values[a:b], values[a:b, 0]) for a, b in itertools.pairwise(cuts)), rows))
    assert all(len(X) == rows for X, _ in chunks[:-1])
    assert np.array_equal(np.concatenate([np.empty((0, 1)), *(X for X, _ in chunks)]), values)
    assert all(np.array_equal(X[:, 0], y) for X, y in chunks)


def test_chunks_fit_the_budget():
    assert chunk_rows(1000, asked=None, budget=10**10, reserved=0) == (16 << 20) // 1000
    small = chunk_rows(1000, asked=None, budget=70_000_000, reserved=0)
    assert 1 <= small < (16 << 20) // 1000
    with pytest.raises(errors.BudgetError, match="`chunk_rows`"):
        chunk_rows(1000, asked=10**6, budget=10**8, reserved=0)


@pytest.mark.parametrize(
    ("name", "kind"), [("t.csv.gz", "csv"), ("t.jsonl", "jsonl"), ("t.npz", "npz"), ("t.h5", "hdf5")]
)
def test_an_address_with_a_query_is_known_by_its_name(name, kind):
    assert detect(f"https://example.org/{name}?version=2&as=x.parquet") == kind


@pytest.mark.parametrize("ending", ["zarr", "parquet"])
def test_what_values_stand_for_goes_with_what_is_converted(tmp_path, ending):
    """-999 was said to be a gap and a comma to be the decimal mark: later files of a model are read likewise."""
    rows = np.random.default_rng(0).standard_normal((300, 2)).round(6)
    lines = [f"{'-999' if i % 5 == 0 else a};{b};{a + b}".replace(".", ",") for i, (a, b) in enumerate(rows.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(["a;b;y", *lines]) + "\n")
    text, said = tmp_path / "t.csv", ("--null", "-999", "--decimal", ",", "--target", "y")
    done("convert", text, tmp_path / f"t.{ending}", *said, "--quiet")
    target = () if ending == "zarr" else ("--target", "y")
    done("train", tmp_path / f"t.{ending}", *FAST, *target, "--quiet", "--out", tmp_path / "made.model")
    done("train", text, *FAST, *said, "--quiet", "--out", tmp_path / "text.model")
    for name in ("made", "text"):
        done("predict", tmp_path / f"{name}.model", text, "--out", tmp_path / f"{name}.parquet", "--quiet")
    assert Model.load(tmp_path / "made.model").reading == {"null": ["-999"], "decimal": ","}
    made, found = (pq.read_table(tmp_path / f"{name}.parquet")["prediction"].to_numpy() for name in ("made", "text"))
    np.testing.assert_allclose(made, found, atol=1e-5)


DAMAGED = [None, [], {"null": 3}, {"decimal": [1]}, {"delimiter": ";"}, {"null": "x", "dates": {}}]


@pytest.mark.parametrize("kept", DAMAGED)
def test_kept_meanings_that_are_not_as_we_write_them_say_nothing(kept):
    assert kept_meanings(kept) == ({"null": "x"} if kept == DAMAGED[-1] else {})
    assert meanings_in_footer({IN_PARQUET: b"{"}) == {}
