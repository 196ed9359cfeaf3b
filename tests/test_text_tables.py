"""CSV and JSON lines straight into training: what is understood, what stays text, and the parquet that is kept."""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from commands import FAST, PROJECT, done, everything_in, streamrf

from streamrf.api import predict, train
from streamrf.data.cache import FOLDER, Reading
from streamrf.data.columns import Handling
from streamrf.data.open import open_source, readable
from streamrf.data.readers import base
from streamrf.data.readers.base import Lines, Unfit
from streamrf.data.readers.csv import SLICE, CsvBatches, CsvParser, CsvReading, leading_zeros
from streamrf.data.readers.dialect import Dialect
from streamrf.data.readers.jsonl import JsonLinesBatches
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.support import errors
from streamrf.support.progress import Reporter


class Notes(Reporter):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def parquet_of(path: Path, **reading: object) -> tuple[pa.Table, list[str]]:
    """The table that a file of text becomes, and what was said."""
    notes = Notes()

    place, _ = readable(path, Reading(reading), notes)
    return pq.read_table(place), notes.texts


def written(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# -- types


STAYS = {
    "leading zeros": ("zip\n01067\n12345\n", ["01067", "12345"], "begin with a zero"),
    "decimal comma": ("a;b\n0,5;x\n1,25;y\n", ["0,5", "1,25"], "`decimal=','`"),
    "day and month": ("d,b\n31/12/2023,1\n1/2/2024,2\n", ["31/12/2023", "1/2/2024"], "`dates='DMY'`"),
    "mixed": ("a,b\n1,1\n2,2\n3,3\n4,4\nabc,5\n", ["1", "2", "3", "4", "abc"], "'abc' in line 6 is not a number"),
    "thousands": (
        "a;b\n1,234.5;1\n12.25;2\n2,000,000.0;3\n",
        ["1,234.5", "12.25", "2,000,000.0"],
        "marks between thousands",
    ),
    "half a day": (
        "d,b\n1/31/2024 1:30:00 PM,1\n2/1/2024 11:05 am,2\n",
        ["1/31/2024 1:30:00 PM", "2/1/2024 11:05 am"],
        "'1/31/2024 1:30:00 PM' (line 2) has a time of twelve hours, which no option reads",
    ),
    "hexadecimal": ("a,b\n0x1F,1\n0x20,2\n", ["0x1F", "0x20"], None),
}


@pytest.mark.parametrize("case", STAYS)
def test_what_could_mean_two_things_stays_text_and_is_told(case, tmp_path):
    text, values, sentence = STAYS[case]
    table, notes = parquet_of(written(tmp_path, text))
    assert table.column(0).to_pylist() == values
    assert sentence is None or any(sentence in note for note in notes), notes


ODD = (
    "1", "-2.5", "007", "-007", "+007", " 8", "9 ", " 010", "\t011", '"12"', '" 013"', '"014 "', "0", "0.5", "-0.5",
    "00", "0x1F", "-0x1F", "1e5", "inf", "-inf", "nan", "", " ", "NA", " NA", "?", "x", "1,5", "+3", "1_000", "\u00a04",
    "4\u00a0", "99999999999999999999", "1.", ".5", "true", "2021-01-05", "a, 05",
)  # fmt: skip


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64()], ids=str)
def test_numbers_are_read_as_their_text_says(kind, monkeypatch):
    """Columns of numbers are parsed at once where no value looks odd: the same values and refusals as of the text."""

    def read(cell, *, first):
        quoted = cell if cell.startswith('"') or "," not in cell else f'"{cell}"'
        cells = (quoted, "5") if first else ("5", quoted)
        lines = Lines(1, "".join(f"{each},word \n" for each in (*cells, "6")).encode())
        kinds = [pa.field("number", kind), pa.field("text", pa.string())]
        try:
            return (
                CsvParser(Dialect(",", ("number", "text"), True), "here", CsvReading.of())
                .table(lines, kinds)
                .to_pydict()
            )
        except Unfit as error:
            return str(error)

    cases = [(cell, first) for cell in ODD for first in (True, False)]
    at_once = [str(read(cell, first=first)) for cell, first in cases]
    with monkeypatch.context() as patch:
        patch.setattr(CsvParser, "_numbers", lambda self, lines, kinds: None)
        assert at_once == [str(read(cell, first=first)) for cell, first in cases]
    assert "'007' in column" in at_once[cases.index(("007", True))]
    assert "'number': [8" in at_once[cases.index((" 8", True))]


def test_a_zero_in_front_is_found_wherever_it_stands():
    for text in ("01,2\n", "1,02\n", "1,-02\n", "1,   +02\n", '1,"02"\n', "1;2\n1; 02\n", "1|0x5\n"):
        assert leading_zeros(text.encode(), next(c for c in ";|," if c in text)), text
        assert leading_zeros(b"1,2\n" * SLICE + text.encode(), next(c for c in ";|," if c in text)), text
    for text in ("0,0.5\n", "-0.5,10\n", "1,0\n", "2021-01-05 00:07,100\n", "1.05,1e05\n"):
        assert not leading_zeros(text.encode(), ","), text


def test_an_option_reads_decimal_commas_and_dates_in_any_order(tmp_path):
    text = "n;d;u\n0,5;31/12/2023;12-31-2023 4:05\n-1;1/2/2024;1-2-2024 14:05:06\n;;\n"
    table, notes = parquet_of(written(tmp_path, text), decimal=",", dates=["DMY", "u=MDY"])
    assert table["n"].to_pylist() == [0.5, -1.0, None]
    assert [str(day) for day in table["d"].to_pylist()] == ["2023-12-31 00:00:00", "2024-02-01 00:00:00", "None"]
    assert [str(day) for day in table["u"].to_pylist()] == ["2023-12-31 04:05:00", "2024-01-02 14:05:06", "None"]
    assert len(notes) == 1
    with pytest.raises(errors.InputError, match="DMY, MDY, YMD"):
        parquet_of(tmp_path / "t.csv", dates="YDM")


def test_a_date_whose_year_comes_first_can_mean_one_thing_only(tmp_path, monkeypatch):
    rows = ["2013/06/12", "2013.6.1 4:05", "", "2014/12/31T23:59:58.25", "2015-02-03"]
    path = written(tmp_path, "d,u\n" + "".join(f"{day},12/06/2013\n" for day in rows))
    for size in (1 << 20, 1):  # in one block, and each row in a block of its own, ISO dates among them
        monkeypatch.setitem(base.line_blocks.__kwdefaults__, "size", size)
        table, notes = parquet_of(path, null=[f"no such word {size}"])
        days = [str(day) for day in table["d"].to_pylist()]
        expected = ["2013-06-12 00:00:00", "2013-06-01 04:05:00", "None", "2014-12-31 23:59:58.250000"]
        assert days == [*expected, "2015-02-03 00:00:00"]
        assert len([note for note in notes if "'u' is read as text" in note]) == 1
        assert not [note for note in notes if "'d'" in note]
    odd = written(tmp_path, "d,b\n" + "2013/06/12,1\n" * 9 + "2013/31/12,2\n", "odd.csv")
    table, notes = parquet_of(odd)
    assert table.schema.field("d").type == pa.string()
    assert any("'2013/31/12' in line 11 is not a date" in note for note in notes), notes


def test_types_do_not_depend_on_where_blocks_end(tmp_path, monkeypatch):
    """Types come from all rows, whether the first block is one line or everything."""
    rows = [f"{i},{i},{i}.5,2024-01-01,,true\n" for i in range(200)]
    rows[150] = "1.5,x,inf,2024-01-02T00:00,7,false\n"
    rows[170] = "007,y,-1,someday,8,no\n"
    path = written(tmp_path, "int,text,float,date,late,bool\n" + "".join(rows))
    whole, _ = parquet_of(path)
    assert [str(kind) for kind in whole.schema.types] == ["string", "string", "double", "string", "int64", "string"]
    assert whole["float"][150].as_py() == float("inf")
    for size in (1, 100, 3000):
        monkeypatch.setitem(base.line_blocks.__kwdefaults__, "size", size)
        found, _ = parquet_of(path, null=[f"no such word {size}"])
        assert found.equals(whole)
        assert CsvBatches(str(path)).schema.types == whole.schema.types


def test_marks_quotes_and_line_ends_are_found_out(tmp_path):
    rows = 'größe, in m;"say ""hi""";c\r\n"1;5";"line\r\nbreak";NA\r\n2; spaced ;-\r\n'
    table, _ = parquet_of(written(tmp_path, b"\xef\xbb\xbf" + rows.encode()))
    assert table.to_pydict() == {
        "größe, in m": ["1;5", "2"], 'say "hi"': ["line\r\nbreak", "spaced"], "c": [None, None],
    }  # fmt: skip
    utf16, _ = parquet_of(written(tmp_path, rows.encode("utf-16"), "u.csv"))
    assert utf16.equals(table)
    quoted, _ = parquet_of(written(tmp_path, '"a, b";"c, d"\n1;2\n3;4\n', "q.csv"))
    assert quoted.to_pydict() == {"a, b": [1, 3], "c, d": [2, 4]}


def test_another_encoding_is_named_or_told(tmp_path):
    path = written(tmp_path, "name,a\nKöln,1\n".encode("latin-1"))
    with pytest.raises(errors.DataError, match=r"not UTF-8 text \(near line 2\): .*`encoding='latin-1'`"):
        parquet_of(path)
    assert parquet_of(path, encoding="latin-1")[0]["name"].to_pylist() == ["Köln"]
    with pytest.raises(errors.InputError, match="`encoding='klingon'` is not known"):
        parquet_of(path, encoding="klingon")


def test_a_first_column_without_a_name_is_row_numbers(tmp_path):
    path = written(tmp_path, ",a,y\n0,1.5,2\n1,2.5,3\n")
    assert open_source(path).feature_names == ("a",)
    assert "no name" in parquet_of(path)[1][-1]


def test_values_of_several_types_in_objects_are_text(tmp_path, monkeypatch):
    """It used to end in an error."""
    rows = [{"a": i, "b": i, "c": {"d": 1}, "t": "2024-01-01"} for i in range(50)]
    rows[30] |= {"a": "x", "b": 2.5}
    rows[40] |= {"a": None, "new": True}
    path = written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "t.jsonl")
    whole, notes = parquet_of(path)
    assert whole["a"].to_pylist() == [
        *map(str, range(30)),
        "x",
        *map(str, range(31, 40)),
        None,
        *map(str, range(41, 50)),
    ]
    assert whole["b"].type == pa.float64()
    assert whole["new"][40].as_py() is True
    assert pa.types.is_timestamp(whole["t"].type)
    schema = JsonLinesBatches(str(path)).schema
    assert "column 'a' is read as text: its values are of several types" in notes
    for size in (1, 300):
        monkeypatch.setitem(base.line_blocks.__kwdefaults__, "size", size)
        assert JsonLinesBatches(str(path)).schema == schema


@pytest.mark.parametrize(
    "texts", [["2024-01-31T00:00:00.000", "2024-02-01"], ["2024-01-31T00:00:00.000Z", "2024-02-01T01:00:00+01:00"]]
)
def test_times_with_a_fraction_in_objects_are_dates(tmp_path, monkeypatch, texts):
    """As pandas writes them. They used to be text, and were left out as identifiers."""
    path = written(tmp_path, "".join(json.dumps({"t": text, "s": "no time"}) + "\n" for text in texts), "t.jsonl")
    for size in (1, 300):
        monkeypatch.setitem(base.line_blocks.__kwdefaults__, "size", size)
        table, _ = parquet_of(path)
        assert [str(value) for value in table["t"].to_pylist()] == ["2024-01-31 00:00:00", "2024-02-01 00:00:00"]
        assert table["s"].type == pa.string()


# -- the parquet that is kept


def small(folder: Path, name: str = "t.csv", rows: int = 300, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    lines = [
        f"{a:.4f},{c},{2 * a:.4f}\n" for a, c in zip(rng.normal(size=rows), rng.choice(["u", "v"], rows), strict=False)
    ]
    return written(folder, "a,c,y\n" + "".join(lines), name)


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path):
    path = small(tmp_path)
    assert "converted" in parquet_of(path)[1][0]
    first = everything_in(tmp_path / FOLDER)
    assert "unchanged" in parquet_of(path)[1][0]
    assert everything_in(tmp_path / FOLDER) == first
    small(tmp_path, seed=1)
    os.utime(path, ns=(1, 1))
    table, notes = parquet_of(path)
    assert "converted" in notes[0]
    assert len(everything_in(tmp_path / FOLDER)) == 1
    assert table["a"][0].as_py() == float(path.read_text().splitlines()[1].split(",")[0])
    parquet_of(path, null=["u"])  # read in another way, it is another table
    assert len(everything_in(tmp_path / FOLDER)) == 2


def test_without_a_cache_nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    source = open_source(small(tmp_path), columns=Handling(), cache=False)
    assert len(everything_in(tmp_path / "tmp")) == 2
    assert source.n_rows == 300
    del source
    assert everything_in(tmp_path) == {"t.csv", "tmp"}


def test_where_the_data_cannot_be_written_the_users_cache_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "data").mkdir()
    path = small(tmp_path / "data")
    (tmp_path / "data" / FOLDER).write_text("in the way")
    _, notes = parquet_of(path)
    assert str(tmp_path / "home" / "streamrf") in notes[0]


def test_a_failed_conversion_leaves_nothing(tmp_path):
    with pytest.raises(errors.DataError, match="line 4"):
        parquet_of(written(tmp_path, "a,b\n1,2\n3,4\n5\n"))
    assert everything_in(tmp_path) <= {"t.csv", FOLDER}


def test_two_processes_at_once_find_the_same_table(tmp_path):
    path = small(tmp_path, rows=20_000)
    code = f"from streamrf import open_source; print(open_source({str(path)!r}, exclude='c').fingerprint())"
    runs = [subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE) for _ in range(2)]
    answers = {run.communicate()[0] for run in runs}
    assert len(answers) == 1
    assert all(run.returncode == 0 for run in runs)
    assert len(everything_in(tmp_path / FOLDER)) == 1


# -- all commands


def test_csv_json_lines_lists_patterns_and_folders_train_as_parquet_does(tmp_path):
    (tmp_path / "parts").mkdir()
    one, two = (small(tmp_path / "parts", f"{name}.csv", seed=seed) for seed, name in enumerate(("one", "two")))
    tables = [pa.concat_tables([parquet_of(path)[0]]).replace_schema_metadata() for path in (one, two)]
    pq.write_table(pa.concat_tables(tables), tmp_path / "t.parquet", row_group_size=300)
    rows = [json.dumps(row) + "\n" for table in tables for row in table.to_pylist()]
    written(tmp_path, gzip.compress("".join(rows).encode()), "t.jsonl.gz")
    with pa.output_stream(tmp_path / "t.csv.zst", compression="zstd") as file:
        file.write(one.read_bytes() + b"".join(two.read_bytes().splitlines(keepends=True)[1:]))
    digests = {
        done("train", *data, *FAST, "--json", "--overwrite", "--out", tmp_path / "m.model").json["statistics_digest"]
        for data in (
            (tmp_path / "t.parquet",),
            (one, two),
            (tmp_path / "parts",),
            (tmp_path / "parts" / "*.csv",),
            (tmp_path / "t.jsonl.gz",),
            (tmp_path / "t.csv.zst", "--no-cache"),
        )
    }
    assert len(digests) == 1


def test_a_set_of_files_has_the_same_types_in_all(tmp_path):
    """A column that is empty in one file, whole in the next and text in the third is text in all, as it was written."""
    for name, values in (("a", ",1"), ("b", "1.50,2"), ("c", "x,2.5")):
        written(tmp_path, f"t,n,y\n{values},0\n{values},1\n", f"{name}.csv")
    source = open_source(str(tmp_path / "*.csv"), columns=Handling(missing="median"))
    assert source.columns.columns[0].levels == ("1.50", "x")
    assert source.columns.columns[1].kind == "number"


def test_update_forget_report_plan_and_inspect_take_csv(tmp_path):
    one, two = small(tmp_path, "one.csv"), small(tmp_path, "two.csv", seed=1)
    model = tmp_path / "m.model"
    before = done("train", one, *FAST, "--json", "--out", model).json["statistics_digest"]
    done("update", model, two, "--quiet")
    answer = streamrf("update", model, two, "--quiet")
    assert answer.code != 0
    assert "two.csv" in answer.err
    assert FOLDER not in answer.err
    done("forget", model, two, "--quiet")
    assert done("inspect", model, "--json").json["statistics_digest"] == before
    done("plan", one, "--D", "32")
    assert done("inspect", one, "--json").json["rows"] == 300
    assert done("evaluate", model, two, "--json").json["r2"] > 0.9
    done("report", model, "--data", two, "--out", tmp_path / "r.html", "--quiet")


def test_other_tables_are_measured_or_told_what_is_wrong(tmp_path):
    """A column without values is filled in, one with a stray word or none of the name is told with what there is."""
    model = tmp_path / "m.model"
    done("train", small(tmp_path), *FAST, "--out", model, "--quiet")
    written(tmp_path, "c,y,a\n" + "u,1,\nv,2,\n", "empty.csv")
    assert done("evaluate", model, tmp_path / "empty.csv", "--json").json["rows"] == 2
    stray = written(tmp_path, "a,c,y\n" + "1,u,2\n" * 9 + "abc,u,2\n", "stray.csv")
    gone = written(tmp_path, "c,y\nu,1\n", "gone.csv")
    for path, sentence in ((stray, "'abc' in .*line 11"), (gone, "no column 'a' in .*'c', 'y'")):
        for command in (("evaluate", model, path), ("predict", model, path, "--out", tmp_path / "o.csv")):
            answer = streamrf(*command, "--quiet")
            assert answer.code == errors.DataError.exit_code
            assert re.search(sentence, answer.sentence), answer.sentence


def test_options_of_csv_are_refused_for_other_files(tmp_path):
    written(tmp_path, '{"a": 1, "y": 2}\n', "t.jsonl")
    answer = streamrf("train", tmp_path / "t.jsonl", "--decimal", ",")
    assert answer.code == errors.InputError.exit_code
    assert "--decimal is about csv files, and there are jsonl files" in answer.err
    written(tmp_path, "a,y\n" + "1,2\n2,3\n" * 20)
    done("train", tmp_path / "t.csv", *FAST, "--out", tmp_path / "m.model", "--quiet")
    predict = ("predict", tmp_path / "m.model", tmp_path / "t.jsonl", "--out", tmp_path / "o.csv")
    assert "--decimal is about other files" in streamrf(*predict, "--decimal", ",").err


# -- names


def test_names_of_columns_repeat_add_up_and_may_be_patterns(tmp_path):
    path = written(tmp_path, '"a, b",id_1,id_2,c d,e,y\n1,2,3,4,5,6\n2,3,4,5,6,7\n')

    def names(*options: str) -> list[str]:
        return done("inspect", path, "--json", *options).json["feature_names"]

    assert names("--exclude", "id_*", "--exclude", "c d") == ["a, b", "e"]
    assert names("--exclude", "a, b", "--exclude", "e,c d") == ["id_1", "id_2"]
    assert names("--exclude", '"a, b",e') == ["id_1", "id_2", "c d"]
    assert names("--features", "e,c d", "--features", "a, b") == ["e", "c d", "a, b"]
    answer = streamrf("inspect", path, "--exclude", "no_*")
    assert answer.code == errors.DataError.exit_code
    assert "no column 'no_*'" in answer.err
    written(tmp_path, '[inspect]\nexclude = "id_*,e"\n', "s.toml")
    assert names("--config", str(tmp_path / "s.toml")) == ["a, b", "c d"]


# -- what was understood


def test_what_was_understood_is_shown_before_training(tmp_path):
    path = written(tmp_path, "zip,n,t,e,when,y\n" + "01067,1,a,,2024-01-01,1\n,2.5,b,,2024-01-02,0\n" * 20)
    found = {each["column"]: each for each in done("inspect", path, "--json").json["columns"]}
    assert found["zip"] == {
        "column": "zip", "type": "text", "gaps": 20, "levels": 1, "partial": False, "example": "01067",
    }  # fmt: skip
    assert [each["type"] for each in found.values()] == [
        "text", "number", "text", "empty", "date", "whole number, target",
    ]  # fmt: skip
    assert found["e"]["gaps"] == 40
    answer = done("train", path, *FAST, "--out", tmp_path / "m.model")
    for text in (answer.err, done("inspect", path).out):
        lines = [line.split() for line in text.splitlines()]
        assert ["column", "type", "gaps", "levels", "example"] in lines
        assert ["zip", "text", "20", "1", "01067"] in lines
    assert "column " not in done("train", path, *FAST, "--out", tmp_path / "q.model", "--quiet").err
    wide = written(tmp_path, ",".join(f"c{i}" for i in range(50)) + "\n" + ",".join("1" * 50) + "\n", "wide.csv")
    lines = done("inspect", wide, "--y", "c0").out.splitlines()
    assert lines[-1].startswith("and 20 more columns")
    assert len(done("inspect", wide, "--y", "c0", "--json").json["columns"]) == 50


# -- predictions with other columns beside them


@pytest.fixture(scope="module")
def people(tmp_path_factory) -> Path:
    """Models of one and of two targets, and rows with an id to predict."""
    place = tmp_path_factory.mktemp("people")
    rng = np.random.default_rng(0)
    lines = [
        f"{i:05},{a:.3f},{i % 3},{a:.3f},{-a:.3f},{'hi' if a > 0 else 'lo'}\n"
        for i, a in enumerate(rng.normal(size=300))
    ]
    written(place, "id,a,b,y,z,label\n" + "".join(lines))
    train = ("train", place / "t.csv", "--features", "a,b", *FAST, "--quiet")
    done(*train, "--target", "label", "--out", place / "label.model")
    done(*train, "--target", "y", "--target", "z", "--out", place / "two.model")
    rows = "".join(f"0{i},{i}.50,2,2024-01-0{i},{i}\n" for i in range(1, 6))
    written(place, "=id,a,b,when,count\n" + rows.replace("03,", "=cmd(),"), "new.csv")
    pq.write_table(parquet_of(place / "new.csv")[0], place / "new.parquet")
    return place


def answer_rows(people: Path, model: str, data: str, *options: str) -> list[dict[str, str]]:
    done("predict", people / model, people / data, "--out", people / "o.csv", "--overwrite", "--quiet", *options)
    with open(people / "o.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("data", ["new.csv", "new.parquet"])
def test_columns_are_kept_beside_predictions(people, data):
    plain = answer_rows(people, "label.model", data, "--proba")
    assert list(plain[0]) == ["prediction", "p_hi", "p_lo"]
    kept = answer_rows(people, "label.model", data, "--proba", "--keep", "=id", "--keep", "when,count")
    assert [list(row.values())[3:] for row in kept] == [list(row.values()) for row in plain]
    assert [row["=id"] for row in kept] == ["01", "02", "=cmd()", "04", "05"]
    assert [row["count"] for row in kept] == list("12345")
    assert kept[0]["when"].startswith("2024-01-01")
    assert list(answer_rows(people, "two.model", data, "--keep", "all")[0]) == [
        "=id", "a", "b", "when", "count", "prediction_y", "prediction_z",
    ]  # fmt: skip
    answer = streamrf("predict", people / "two.model", people / data, "--out", people / "n.csv", "--keep", "iq")
    assert answer.code == errors.DataError.exit_code
    assert "no column 'iq'" in answer.err


@pytest.mark.parametrize("data", ["new.csv", "new.parquet"])
def test_formulas_are_quoted_by_option(people, data):
    rows = answer_rows(people, "two.model", data, "--keep", "=id", "--escape-formulas")
    assert [row["'=id"] for row in rows] == ["01", "02", "'=cmd()", "04", "05"]
    assert float(rows[0]["prediction_z"]) < 0  # a negative number is a number
    answer = streamrf(
        "predict", people / "two.model", people / data, "--out", people / "n.parquet", "--escape-formulas"
    )
    assert answer.code == errors.InputError.exit_code


def test_kept_columns_have_types_in_parquet_and_json(people):
    predict = ("predict", people / "two.model", people / "new.parquet")
    done(*predict, "--out", people / "k.parquet", "--keep", "all")
    assert [str(kind) for kind in pq.read_schema(people / "k.parquet").types] == [
        "string", "double", "int64", "string", "int64", "double", "double",
    ]  # fmt: skip
    done(*predict, "--out", people / "k.jsonl", "--keep", "count")
    assert [json.loads(line)["count"] for line in (people / "k.jsonl").read_text().splitlines()] == [1, 2, 3, 4, 5]
    answer = streamrf(
        "predict", people / "two.model", people / "new.parquet", "--out", people / "k.npy", "--keep", "when"
    )
    assert "column 'when' is text" in answer.err


def test_kept_numbers_with_gaps_stay_numbers(people):
    """Of floats a gap is null; other types have none, so whole numbers with gaps are kept as text, digit by digit."""
    table = parquet_of(people / "new.csv")[0]
    odd = table.append_column("x", pa.array([0.5, None, 1.5, None, 2.5])).append_column(
        "n", pa.array([1, None, 3, 4, 5])
    )
    pq.write_table(odd, people / "gaps.parquet")
    predict = ("predict", people / "two.model", people / "gaps.parquet", "--keep", "x,n", "--quiet", "--out")
    for ending in ("parquet", "jsonl", "csv"):
        done(*predict, people / f"g.{ending}")
    kept = pq.read_table(people / "g.parquet")
    assert kept["x"].to_pylist() == [0.5, None, 1.5, None, 2.5]
    assert kept["n"].to_pylist() == ["1", "", "3", "4", "5"]
    assert [json.loads(line)["x"] for line in (people / "g.jsonl").read_text().splitlines()] == kept["x"].to_pylist()
    with open(people / "g.csv", newline="") as file:
        assert [row["x"] for row in csv.DictReader(file)] == ["0.5", "", "1.5", "", "2.5"]


def test_csv_and_parquet_of_a_table_differ_by_what_csv_cannot_say(tmp_path):
    """Codes of digits can be named, words for missing are nulls, and 32 bits cost a last digit."""
    rng = np.random.default_rng(0)
    x, codes = rng.standard_normal(500), rng.choice(["1", "12", "7"], 500)
    marks, y = rng.choice(["a", "?", "b"], 500), x + (codes == "7")
    recipe = Recipe(D=32, pilot="none", length_scale=2.0, bits="12", ridge=1e-4, holdout=0.0)

    def trained(name, columns, place, bits="12", **handling):
        table, path = pa.table(columns | {"y": y}), tmp_path / f"{name}.{place}"
        (pq.write_table if place == "parquet" else arrow_csv.write_csv)(table, path)
        source = open_source(path, target="y", columns=Handling(**handling))
        model = train(source, recipe.with_(bits=bits)).model
        return model.metadata["statistics_digest"], predict(model, str(path))

    coded = {"x": x, "code": codes}
    wanted = trained("a", coded, "parquet")[0]
    assert trained("a", coded, "csv")[0] != wanted
    assert trained("a", coded, "csv", categorical=("code",))[0] == wanted
    gaps = pa.array([None if mark == "?" else mark for mark in marks])
    assert trained("b", {"x": x, "m": marks}, "csv")[0] == trained("c", {"x": x, "m": gaps}, "parquet")[0]
    narrow = {"x": pa.array(x, pa.float32())}
    found = [trained("d", narrow, place, "float64")[1] for place in ("parquet", "csv")]  # others may round another way
    assert np.abs(found[0] - found[1]).max() < 1e-5


# -- all the way


def nasty(folder: Path, rows: int, seed: int) -> Path:
    """Marks, quotes, gaps, mixed types, empty and constant columns, infinities, dates in three formats, many levels."""
    rng = np.random.default_rng(seed)
    size, when = rng.normal(size=rows), rng.integers(0, 700, rows)
    days = [np.datetime64("2022-01-01") + np.timedelta64(int(day), "D") for day in when]
    table = {
        "größe, in m": [f"{value:.3f}".replace(".", ",") for value in size],
        'kind "x"': rng.choice(["a; b", 'say "hi"', "line\nbreak", "ü"], rows).tolist(),
        "zip": [f"{code:05}" for code in rng.integers(1, 5001, rows)],
        "id": [f"row {i} {seed}" for i in range(rows)],
        "mixed": [str(value) if value % 11 else "many" for value in rng.integers(0, 50, rows)],
        "empty": [""] * rows,
        "constant": ["7"] * rows,
        "far": ["inf" if value < 0.02 else f"{value:.2f}".replace(".", ",") for value in rng.random(rows)],
        "iso": [str(day) for day in days],
        "day first": [f"{day.astype(object):%d/%m/%Y}" for day in days],
        "stamp": [f"{day.astype(object):%Y.%m.%d} 0{i % 9}:30" for i, day in enumerate(days)],
    }
    for name in ("größe, in m", 'kind "x"', "zip", "mixed", "iso"):
        gaps = rng.random(rows) < 0.3
        words = rng.choice(["", "NA", "null", "?", "-"], rows)
        table[name] = [str(w) if gap else v for v, gap, w in zip(table[name], gaps, words, strict=True)]
    table["Preis, €"] = [f"{3 * a + day / 300:.3f}".replace(".", ",") for a, day in zip(size, when, strict=True)]
    path = folder / f"nasty {seed}.csv"
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file, delimiter=";", lineterminator="\r\n")
        writer.writerows([table, *zip(*table.values(), strict=True)])
    return path


def test_a_nasty_table_goes_all_the_way(tmp_path):
    train, new = nasty(tmp_path, 6000, 0), nasty(tmp_path, 300, 1)
    reading = ("--decimal", ",", "--dates", "DMY", "--dates", "stamp=YMD")
    settings = ("--D", "300", "--pilot", "none", "--threads", "1")
    answer = done("train", train, "--target", "Preis, €", *reading, *settings, "--out", tmp_path / "m.model")
    for word in ("'mixed' is read as text", "'zip' is read as text", "'empty'", "'id'"):
        assert word in answer.err
    found = {each["column"]: each["type"] for each in done("inspect", train, "--json", *reading).json["columns"]}
    assert {found[name] for name in ("iso", "day first", "stamp")} == {"date"}
    assert {found[name] for name in ("größe, in m", "far", "Preis, €")} == {"number"}
    kinds = {column.name: column.kind for column in Model.load(tmp_path / "m.model").columns.columns}
    assert kinds["zip"] == "target"
    assert kinds["constant"] == "number"
    assert "empty" not in kinds
    assert "id" not in kinds
    assert done("evaluate", tmp_path / "m.model", new, *reading, "--json").json["r2"] > 0.3
    done("predict", tmp_path / "m.model", new, *reading, "--keep", "id", "--out", tmp_path / "p.csv", "--quiet")
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"row {i} 1" for i in range(300)]
    done("predict", tmp_path / "m.model", new, new, *reading, "--out", tmp_path / "two.csv", "--quiet")
    with open(tmp_path / "two.csv", newline="") as file:  # through parquet, and as rows came: the same
        again = [float(row["prediction"]) for row in csv.DictReader(file)]
    assert again[:300] == [float(row["prediction"]) for row in rows]
    done("report", tmp_path / "m.model", "--data", new, *reading, "--out", tmp_path / "r.html", "--quiet")
    page = (tmp_path / "r.html").read_text()
    assert "größe, in m" in page
    assert "kind &quot;x&quot;" in page or "kind &#34;x&#34;" in page
