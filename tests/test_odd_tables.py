"""Odd CSV files and frames: what a new user's table may look like, and the one sentence where no model can be made."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pandas as pd
import pytest
from commands import done, streamrf

import streamrf as streamrf_api
from streamrf.api.estimators import KernelRegressor
from streamrf.cli.importance import told_apart
from streamrf.data.readers.dialect import find_dialect
from streamrf.data.readers.text_types import orders_of
from streamrf.models.model import Model
from streamrf.reports import importance

QUICK = ("--map", "binning", "--grids", "4", "--pilot", "none", "--threads", "1", "--quiet")


def table(rows=120, price="{:.3f}", **more):
    """Semicolons, and a decimal comma in every number; ``more`` are columns of a function of the row's number."""
    rng = np.random.default_rng(0)
    names = ["area, m²", "class", *more, "price"]
    lines = [";".join(names)]
    for i in range(rows):
        area = rng.normal()
        cells = [f"{area:.3f}".replace(".", ","), str(rng.choice(["new", "old"])), *(make(i) for make in more.values())]
        lines.append(";".join([*cells, price.format(2 * area + 5, i).replace(".", ",")]))
    return "﻿" + "\r\n".join(lines) + "\r\n" * 4


def write(folder, text, name="t.csv"):
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder / name


# -- the first line

NAMED = {
    "infinity is a name": ("a,inf,nan\n1,2,3\n4,5,6\n", True),
    "years among names": ("place,people,rooms,2020\n1,2,3,4\n5,6,7,8\n", True),
    "years and as many names": ("x,2020\n1,2\n3,4\n", False),
    "values": ("1,2,3\n4,5,6\n", False),
    "decimal commas": ("0,5;1,5\n2,5;3,5\n", False),
    "a level beside numbers": ("M,0.5,1\nF,0.7,2\n", False),
    "a gap beside numbers": ("NA,0.5,1\n3,0.7,2\n", False),
    "names above text": ("a,b\nx,y\nz,w\n", True),
    "names alone": ("a,b\n", True),
}


@pytest.mark.parametrize("case", NAMED)
def test_whether_the_first_line_holds_names(case):
    text, named = NAMED[case]
    assert find_dialect(text, "t.csv").has_header == named


# -- endings: a model, or one sentence with the fix

ENDINGS = {
    "header only": (table(0), (), "has no rows"),
    "nothing at all": ("", (), "has no rows"),
    "empty lines": ("\n\n\n", (), "begins with an empty line"),
    "one row": (table(1), (), "there is nothing to learn"),
    "thirty rows": (table(30), (), None),
    "gaps in the target": (re.sub(r"(\n.*7;.*;).*", r"\1", table(200)), (), None),
    "no target at all": (table(120, price=""), (), "has no values: name another column with --target"),
    "constant target": (table(120, price="7"), (), "one class only (7)"),
    "identifiers as the target": (table(1200, price="u{1}"), (), "an identifier is no target"),
    "two names alike": (
        table(30, **{"class": lambda i: "1"}).replace("price", "class"),
        (),
        "names the column 'class'",
    ),
    "a keyword, empty, constant and infinite columns": (
        table(120, **{"while": str, "empty": lambda _: "", "const": lambda _: "5", "inf": lambda i: "inf" * (i % 2)}),
        (),
        None,
    ),
    "quoted line breaks and truth": (
        table(120, text=lambda i: '"one\ntwo"' if i % 2 else "x", ok=lambda i: ("yes", "no", "")[i % 3]),
        (),
        None,
    ),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_every_ending_is_a_model_or_a_sentence(case, tmp_path):
    text, options, sentence = ENDINGS[case]
    data = write(tmp_path, text)
    told = streamrf("train", data, "--target", "price", "--decimal", ",", *QUICK, *options)
    if sentence is None:
        assert told.code == 0, told.err
        out = tmp_path / "p.csv"
        done("predict", tmp_path / "t.model", data, "--decimal", ",", "--keep", "all", "--out", out, "--quiet")
        assert len(pd.read_csv(out)) == len(pd.read_csv(data, sep=";"))
    else:
        assert told.code == 3
        assert sentence in told.sentence
        assert not (tmp_path / "t.model").exists()


def test_predict_names_the_option_that_reads_a_value(tmp_path):
    """The model knows that the column has numbers: what the new file has is not silently something else."""
    text = table(120, day=lambda i: f"{1 + i % 28:02d}.{1 + i % 12:02d}.2024")
    plain = re.sub(r"(\d\d)\.(\d\d)\.(2024)", r"\3-\2-\1", re.sub(r"(\d),(\d)", r"\1.\2", text))
    done("train", write(tmp_path, plain, "plain.csv"), "--target", "price", "--out", tmp_path / "t.model", *QUICK)
    data = write(tmp_path, text)
    predict = ("predict", tmp_path / "t.model", data, "--out", tmp_path / "p.csv", "--quiet")
    assert streamrf(*predict).sentence.endswith("is not a number: --decimal , reads it as a number")
    assert streamrf(*predict, "--decimal", ",").sentence.endswith("--dates DMY (or MDY) reads dates")
    done(*predict, "--decimal", ",", "--dates", "DMY")
    evaluate = ("evaluate", tmp_path / "t.model", data, "--quiet")
    assert "--decimal , reads it as a number)" in streamrf(*evaluate).sentence
    assert "fix the data" not in streamrf(*evaluate).sentence


def test_a_model_reads_later_files_as_it_was_trained(tmp_path):
    """Decimal commas, dates and words for gaps: every command takes them from the model; an option overrides them."""
    gaps = {"gap": lambda i: "-999" if i % 5 else str(i % 7)}
    text = table(200, day=lambda i: f"{1 + i % 12:02d}.{1 + i % 9:02d}.2024", **gaps)
    data, model = write(tmp_path, text), tmp_path / "t.model"
    reading = ("--decimal", ",", "--dates", "DMY", "--null", "-999")
    done("train", data, "--target", "price", *reading, *QUICK)
    assert Model.load(model).reading == {"decimal": ",", "dates": ["DMY"], "null": ["-999"]}

    def predicted(*more):
        told = done("predict", model, data, *more, "--out", tmp_path / "p.csv", "--overwrite")
        return (tmp_path / "p.csv").read_text(), told.err

    assert predicted()[0] == predicted(*reading)[0] == predict_rows(data, model)
    assert predicted("--null", "no such word")[0] != predicted()[0]  # -999 is a number then
    evaluate = ("evaluate", model, data, "--json")
    assert done(*evaluate).json == done(*evaluate, *reading).json == streamrf_api.evaluate(model, str(data))
    assert "read as in training, with --dates DMY --decimal , --null -999" in done("evaluate", model, data).err
    done("importance", model, data, "--rows", "50", "--repeats", "1", "--quiet")
    done("report", model, "--data", data, "--out", tmp_path / "r.html", "--quiet")
    sums = ("--D", "20", "--pilot", "none", "--threads", "1", "--quiet", "--out", tmp_path / "f.model")
    done("train", data, "--target", "price", *reading, *sums)
    more = write(tmp_path, text.replace("1", "2"), "more.csv")
    done("update", tmp_path / "f.model", more, "--out", tmp_path / "u.model", "--quiet")
    assert Model.load(tmp_path / "u.model").reading == Model.load(model).reading
    points = write(tmp_path, re.sub(r"(\d),(\d)", r"\1.\2", text), "points.csv")
    told = streamrf("predict", model, points, "--out", tmp_path / "q.csv")
    assert told.sentence.endswith("is not a number: --decimal . reads it as a number")
    done("predict", model, points, "--decimal", ".", "--out", tmp_path / "q.csv")
    assert (tmp_path / "q.csv").read_text() == predicted()[0]


def predict_rows(data, model):
    """The same from Python, where files go through parquet."""
    place = data.parent / "api.csv"
    streamrf_api.predict(model, str(data), out=place, overwrite=True)
    return place.read_text()


def test_dates_of_another_order_are_told_with_their_own(tmp_path):
    days = {
        "day": lambda i: f"{1 + i % 28:02d}.{1 + i % 12:02d}.2024",
        "us": lambda i: f"{1 + i % 12}/{1 + i % 28}/2024",
    }
    data = write(tmp_path, table(120, **days))
    told = done("inspect", data, "--decimal", ",", "--dates", "DMY")
    assert "is no DMY date: --dates us=MDY reads it" in told.err + told.out
    assert "'day' is read as text" not in told.err + told.out
    assert orders_of("31/12/2024") == ["DMY"]
    assert orders_of("no date") == []


def test_columns_of_types_that_tables_do_not_have_are_left_out(caplog):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=80), "wave": rng.normal(size=80) * 1j})
    frame["y"] = frame["a"] * 2
    caplog.set_level("INFO", logger="streamrf")
    model = KernelRegressor(D=16, pilot="none").fit(frame, "y")
    assert "left out: 'wave' is of type complex128" in caplog.text
    assert model.predict(frame).shape == (80,)


def test_a_blend_without_landmarks_shows_no_lambda(tmp_path, monkeypatch):
    """Thresholds in single columns, which trees alone are taken for."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 6, (2400, 3))
    lines = [f"{a},{b},{c},{(a > 2) * 5 + (b > 3) * (c > 1) * 3}" for a, b, c in X]
    data = write(tmp_path, "a,b,c,y\n" + "\n".join(lines))
    monkeypatch.setattr("streamrf.solvers.stacking.LEAST_SHARE", 2.0)  # of several, none is enough
    monkeypatch.setattr("streamrf.solvers.stacking._used", lambda *_: np.array([2]))
    told = done("train", data, "--target", "y", "--map", "blend", "--D", "20", "--grids", "4", "--pilot", "none",
                "--threads", "1").out  # fmt: skip
    assert "trees alone" in told
    assert "\nlambda" not in told


def test_levels_of_one_mean_are_one_value(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"{rng.normal():.3f},p{rng.integers(0, 400)},{rng.normal():.3f}" for _ in range(900)]
    data = write(tmp_path, "a,place,y\n" + "\n".join(lines))
    told = done("train", data, "--target", "y", *QUICK)
    del told
    model = Model.load(tmp_path / "t.model")
    codes = np.array([j for j, name in enumerate(model.feature_names) if name.startswith("place")])
    X = np.zeros((40, model.n_inputs))
    X[:, codes[0]], X[:, codes[1]] = np.arange(40) % 4, np.arange(40) % 8
    found = importance.dependence_of(model, lambda X: X[:, codes[1:2]], X, "place", codes)
    assert found.means
    assert found.values == (0.0, 1.0, 2.0, 3.0)
    assert found.predictions[:, 0].tolist() == [2.0, 3.0, 4.0, 5.0]
    shown = done("importance", tmp_path / "t.model", data, "--rows", "300", "--repeats", "1", "--partial", "place",
                 "--threads", "1").out  # fmt: skip
    assert "place, by its mean" in shown
    assert "The model sees 'place' as the mean of the target for each value, drawn towards that of all rows" in shown
    lines = shown.partition("place, by its mean")[2].splitlines()[1:]
    values = [line.split()[0] for line in lines if len(line.split()) == 2]
    assert len(values) == len(set(values)) > 5


def test_means_that_lie_close_together_are_told_apart():
    assert told_apart([12.3456781, 12.3456792, "missing"]) == ["12.345678", "12.345679", "missing"]
    assert told_apart([1.0, 20.25]) == ["1", "20.25"]
    assert told_apart([0.5, 0.5]) == ["0.5", "0.5"]


def test_a_model_of_numbers_says_what_it_needs_of_a_column_of_text(tmp_path):
    plain = "a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 7 + i / 100}\n" for i in range(100))
    done("train", write(tmp_path, plain), "--target", "y", *QUICK)
    frame = pd.read_csv(tmp_path / "t.csv").astype({"b": str})
    frame.to_parquet(tmp_path / "text.parquet")
    told = streamrf("evaluate", tmp_path / "t.model", tmp_path / "text.parquet")
    assert told.code == 3
    assert "which is not numeric: a model that was trained on numbers needs numbers there" in told.sentence


def test_the_list_of_columns_to_leave_out_works_when_it_is_copied(tmp_path):
    """Names may have commas, blanks and quotes."""
    rng = np.random.default_rng(0)
    text = 'id;"a, b";"empty ""x""";zone;"zip, code";y\n'
    text += "".join(f"u{i};k{i};;{rng.integers(3)};{rng.integers(4)};{rng.normal():.3f}\n" for i in range(300))
    told = done("train", write(tmp_path, text), "--target", "y", "--out", tmp_path / "one.model", *QUICK[:-1])
    said = re.search(r"To leave them out yourself: (--exclude .*)", told.err)
    assert said
    exclude = shlex.split(said[1])
    assert exclude == ["--exclude", 'id,"a, b","empty ""x"""']
    numeric = ("--categorical", 'zone,"zip, code"')
    again = ("train", tmp_path / "t.csv", "--target", "y", *exclude, *numeric, "--out", tmp_path / "two.model", *QUICK)
    done(*again)
    assert Model.load(tmp_path / "two.model").columns.names == Model.load(tmp_path / "one.model").columns.names
    assert {column.kind for column in Model.load(tmp_path / "two.model").columns.columns} == {"onehot"}


@pytest.mark.parametrize("rows", [120, 2600])
def test_a_target_with_decimal_commas_is_told_with_the_option_that_reads_it(tmp_path, rows):
    """Also where it has more different values than there may be classes."""
    data = write(tmp_path, table(rows, price="{:.6f}"))
    told = streamrf("train", data, "--target", "price", *QUICK)
    assert told.code == 3
    found = re.search(r"the targets are text such as '\d+,\d+', (over 1,000|\d+) different ones", told.sentence)
    assert found, told.sentence
    assert (found[1] == "over 1,000") == (rows > 1000)
    assert "--decimal , reads numbers" in told.sentence


def test_lines_that_end_in_carriage_returns_alone_are_told(tmp_path):
    data = write(tmp_path, table(30).replace("\r\n", "\r"))
    told = streamrf("train", data, "--target", "price", *QUICK)
    assert told.code == 3
    assert "end in carriage returns alone: save it with line feeds" in told.sentence


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_column_that_one_file_of_a_set_lacks_is_named_with_the_file(form, tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=80), "c": ["u", "v"] * 40, "y": rng.normal(size=80)})
    for name, part in (("a", frame), ("b", frame.drop(columns="c") + 1)):
        if form == "csv":
            part.to_csv(folder / f"{name}.csv", index=False)
        else:
            part.to_parquet(folder / f"{name}.parquet")
    for command in (
        ("train", folder, "--target", "y", *QUICK),
        ("convert", folder, tmp_path / "out.parquet", "--quiet"),
    ):
        told = streamrf(*command)
        assert told.code == 3
        assert re.search(rf"no column 'c' in .*b\.{form}, but .*a\.{form} has it", told.err), told.err
    done("convert", folder, tmp_path / "x.parquet", "--features", "x", "--target", "y")
    assert pd.read_parquet(tmp_path / "x.parquet").shape == (160, 2)
    done("train", folder, "--features", "x", "--target", "y", "--out", tmp_path / "m.model", *QUICK)


@pytest.mark.parametrize("name", ["table.xlsx", "table.zip"])
def test_what_no_reader_knows_is_told_what_they_know(name, tmp_path):
    (tmp_path / name).write_bytes(b"PK\x03\x04" + bytes(30))
    told = streamrf("train", tmp_path / name, "--target", "y", *QUICK)
    assert told.code == 3
    assert "is in no format that can be read (zarr, parquet, npy, " in told.sentence  # and those that tests add
    assert "CSV, JSON lines and Arrow): neither its ending nor its first bytes" in told.sentence
