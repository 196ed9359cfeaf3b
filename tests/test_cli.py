"""The commands as a user runs them: what they print, where things go, how they end."""

import contextlib
import csv
import json
import os
import random
import re
import shutil
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from commands import FAST, PROJECT, done, everything_in, run_alone, start, streamrf
from sklearn.metrics import roc_auc_score
from tables import labelled, smooth, write_zarr

from streamrf.api import evaluate
from streamrf.cli.display import print_metrics
from streamrf.cli.train import default_out
from streamrf.data.readers.memory import ArraySource
from streamrf.engines.base import Pass
from streamrf.engines.local import PIECE, LocalEngine
from streamrf.models.model import Model
from streamrf.statistics.moments import Moments
from streamrf.support import errors
from streamrf.support.threads import Threads

NAMES = ("a", "b", "c", "d", "e", "f")


def write_parquet(path, X, y, name="y", **more):
    columns = {column: X[:, j] for j, column in enumerate(NAMES[: X.shape[1]])}
    pq.write_table(pa.table({**columns, **more, name: y}), path, row_group_size=700)
    return str(path)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """The same rows in every format, new rows to predict, and models trained on them."""
    root = tmp_path_factory.mktemp("shelf")
    X, y = smooth(2000)
    Xt, yt = smooth(600, seed=1)
    write_zarr(root / "train.zarr", X, y)
    write_zarr(root / "test.zarr", Xt, yt, chunk=250)
    (root / "parts").mkdir()
    write_parquet(root / "parts" / "1.parquet", X[:900], y[:900])
    write_parquet(root / "parts" / "2.parquet", X[900:], y[900:])
    write_parquet(root / "test.parquet", Xt, yt)
    (root / "arrays").mkdir()
    np.save(root / "arrays" / "X.npy", X)
    np.save(root / "arrays" / "y.npy", y)
    Xc, c = labelled(1500)
    names = np.array(["low", "middle", "high"])[c]
    write_zarr(root / "classes.zarr", Xc, c)
    write_parquet(root / "labels.parquet", Xc, names, "size", id=np.arange(len(c)).astype(str))
    write_parquet(root / "binary.parquet", Xc, c > 0, "size")
    done("train", root / "train.zarr", *FAST, "--out", root / "reg.model")
    done("train", root / "labels.parquet", "--target", "size", "--exclude", "id", *FAST, "--out", root / "cls.model")
    return root


# -- the main road, in every format


@pytest.mark.parametrize(
    ("data", "out"),
    [
        ("there/data.zarr/", "there/data.model"),
        ("there/part-*.parquet", "there/part-all.model"),
        ("s3://bucket/part-?.zarr", "part-all.model"),
        ("https://host/t.parquet?file=a/b.csv&version=2.1", "t.model"),
    ],
)
def test_where_a_model_goes(data, out):
    assert default_out(data) == out


@pytest.mark.parametrize("data", ["train.zarr", "parts", "parts/*.parquet", "arrays", "arrays/X.npy"])
def test_every_format_gives_the_same_sums(shelf, tmp_path, data):
    found = done("train", shelf / data, *FAST, "--out", tmp_path / "m.model", "--json").json
    expected = done("inspect", shelf / "reg.model", "--json").json["statistics_digest"]
    assert (found["rows"], found["statistics_digest"]) == (2000, expected)
    metrics = done("evaluate", tmp_path / "m.model", shelf / "test.zarr", "--json").json
    assert metrics["rows"] == 600
    assert metrics["r2"] > 0.3


def test_shards_are_one_table(shelf, tmp_path):
    parts = [shelf / "parts" / "1.parquet", shelf / "parts" / "2.parquet"]
    found = done("train", *parts, *FAST, "--out", tmp_path / "m.model", "--json").json
    assert found["statistics_digest"] == done("inspect", shelf / "reg.model", "--json").json["statistics_digest"]


def test_columns_can_be_named(shelf, tmp_path):
    out = tmp_path / "m.model"
    done("train", shelf / "parts", "--target", "f", "--features", "c,a,b", *FAST, "--out", out)
    seen = done("inspect", out, "--json").json
    assert (seen["feature_names"], seen["inputs"]) == (["c", "a", "b"], 3)
    predicted = tmp_path / "p.npy"
    done("predict", out, shelf / "test.parquet", "--out", predicted)  # columns are found by name, in another order
    assert np.load(predicted).shape == (600,)


def test_several_targets_are_several_outputs(shelf, tmp_path):
    out = tmp_path / "m.model"
    done("train", shelf / "parts", "--target", "e", "--target", "y", *FAST, "--out", out)
    done("predict", out, shelf / "test.parquet", "--out", tmp_path / "p.parquet")
    assert pq.read_table(tmp_path / "p.parquet").column_names == ["prediction_e", "prediction_y"]
    assert len(done("evaluate", out, shelf / "test.parquet", "--target", "e", "--target", "y", "--json").json) == 7


def test_arrays_of_a_group_can_be_named(shelf, tmp_path):
    X, y = smooth(300)
    group = zarr.open_group(str(tmp_path / "t.zarr"), mode="w")
    group.create_array("inputs", data=X)
    group.create_array("outputs", data=y)
    done("train", tmp_path / "t.zarr", "--x", "inputs", "--y", "outputs", *FAST, "--out", tmp_path / "m.model")


def test_a_model_lands_beside_its_data(tmp_path):
    write_zarr(tmp_path / "wind.2020.zarr", *smooth(200))
    done("train", f"{tmp_path}/wind.2020.zarr/", *FAST)
    assert {path.name for path in tmp_path.iterdir()} == {"wind.2020.zarr", "wind.2020.model"}


# -- predictions


def read_predictions(path, column="prediction"):
    if path.suffix == ".zarr":
        return zarr.open_group(str(path), mode="r")[column][:]
    if path.suffix == ".parquet":
        return pq.read_table(path)[column].to_numpy()
    if path.suffix == ".npy":
        return np.load(path)
    with path.open() as lines:
        return np.array([float(row[column]) for row in csv.DictReader(lines)])


@pytest.fixture(scope="module")
def expected(shelf):
    with Threads(1) as threads:
        return Model.load(shelf / "reg.model").scores(smooth(600, seed=1)[0], threads)[:, 0]


@pytest.mark.parametrize("ending", [".zarr", ".parquet", ".npy", ".csv"])
def test_outputs_keep_row_order_and_agree(shelf, tmp_path, expected, ending):
    out = tmp_path / f"p{ending}"
    answer = done("predict", shelf / "reg.model", shelf / "test.zarr", "--out", out, "--json").json
    assert answer.keys() == {"out", "rows", "columns", "unknown_levels", "seconds"}
    assert (answer["rows"], answer["columns"]) == (600, ["prediction"])
    assert np.array_equal(read_predictions(out), expected)


def test_shards_are_predicted_one_after_the_other(shelf, tmp_path, expected):
    done("predict", shelf / "reg.model", shelf / "test.zarr", shelf / "test.zarr", "--out", tmp_path / "p.npy")
    assert np.array_equal(np.load(tmp_path / "p.npy"), np.concatenate([expected, expected]))


def test_rows_without_targets_can_be_predicted(shelf, tmp_path, expected):
    write_zarr(tmp_path / "new.zarr", smooth(600, seed=1)[0], None)
    done("predict", shelf / "reg.model", tmp_path / "new.zarr", "--out", tmp_path / "p.npy")
    assert np.array_equal(np.load(tmp_path / "p.npy"), expected)


def test_probabilities_stand_beside_labels(shelf, tmp_path):
    done("predict", shelf / "cls.model", shelf / "labels.parquet", "--out", tmp_path / "p.parquet", "--proba")
    table = pq.read_table(tmp_path / "p.parquet")
    assert table.column_names == ["prediction", "p_high", "p_low", "p_middle"]
    chances = np.column_stack([table[name].to_numpy() for name in table.column_names[1:]])
    assert np.abs(chances.sum(axis=1) - 1).max() < 1e-12
    assert (np.array(["high", "low", "middle"])[chances.argmax(axis=1)] == table["prediction"].to_numpy()).all()


# -- what machines read


@pytest.fixture(scope="module")
def documented():
    """Names that the page about `--json` explains, in code quotes."""
    return set((PROJECT / "docs" / "json.md").read_text().split("`"))


PROMISED = {
    "train": {"model", "rows", "D", "bits", "chosen", "seconds", "memory", "holdout", "statistics_digest"},
    "evaluate": {"rows", "rmse", "mae", "r2", "relative_error", "baseline"},
    "plan": {"memory", "seconds", "solver", "passes"},
    "inspect": {"statistics_digest", "chosen", "rows"},
}


def check_object(command, answer, documented):
    """One object on one line, with every key that was promised and none that is not explained."""
    assert answer.out.count("\n") == 1
    assert not answer.err
    keys = set(answer.json)
    assert keys >= PROMISED[command]
    assert keys <= documented, keys - documented
    json.dumps(answer.json, allow_nan=False)


def test_train_prints_one_object(shelf, tmp_path, documented):
    answer = done("train", shelf / "train.zarr", *FAST, "--out", tmp_path / "m.model", "--json")
    check_object("train", answer, documented)
    found = answer.json
    assert found["seconds"].keys() == {"pilot", "pass", "solve", "total"}
    assert found["memory"]["peak"] > 0
    assert found["memory"]["projected"] <= found["memory"]["budget"]
    assert (found["model"], found["rows"], found["D"], found["bits"]) == (str(tmp_path / "m.model"), 2000, 32, "8")
    assert found["holdout"].keys() >= PROMISED["evaluate"] | {"linear"}
    assert found["chosen"]["gamma"] == pytest.approx(1 / 8)
    assert None not in {found["chosen"][name] for name in ("kernel", "length_scale", "scaling", "map", "ridge", "task")}
    assert int(found["statistics_digest"], 16).bit_length() > 200


def test_evaluate_prints_one_object(shelf, documented):
    check_object("evaluate", done("evaluate", shelf / "reg.model", shelf / "test.zarr", "--json"), documented)


CLASS_METRICS = {
    "rows", "error", "accuracy", "balanced_accuracy", "log_loss", "brier", "calibration_error", "baseline", "by_class",
    "confusion",
}  # fmt: skip


def test_evaluate_classes(shelf, documented, tmp_path):
    answer = done("evaluate", shelf / "cls.model", shelf / "labels.parquet", "--target", "size", "--json")
    found = answer.json
    assert found.keys() == CLASS_METRICS
    assert np.sum(found["confusion"]) == 1500
    assert np.trace(found["confusion"]) / 1500 == pytest.approx(found["accuracy"]) == pytest.approx(1 - found["error"])
    done("train", shelf / "binary.parquet", "--target", "size", *FAST, "--out", tmp_path / "b.model")
    binary = done("evaluate", tmp_path / "b.model", shelf / "binary.parquet", "--target", "size", "--json").json
    assert binary.keys() == CLASS_METRICS | {"auc", "average_precision"}
    done("predict", tmp_path / "b.model", shelf / "binary.parquet", "--out", tmp_path / "p.parquet", "--proba")
    chances = pq.read_table(tmp_path / "p.parquet")["p_True"].to_numpy()
    assert binary["auc"] == pytest.approx(roc_auc_score(labelled(1500)[1] > 0, chances), abs=1e-4)
    assert set(found) | set(binary) <= documented


def test_plan_prints_one_object(shelf, documented):
    answer = done("plan", shelf / "train.zarr", "--D", "100", "--json")
    check_object("plan", answer, documented)
    assert answer.json["passes"] == 1
    assert answer.json["memory"]["projected"] <= answer.json["memory"]["budget"]
    assert answer.json["seconds"]["total"] > 0


def test_inspect_prints_one_object(shelf, documented):
    check_object("inspect", done("inspect", shelf / "reg.model", "--json"), documented)
    found = done("inspect", shelf / "train.zarr", "--json").json
    assert (found["rows"], found["inputs"], found["outputs"], found["target_dtype"]) == (2000, 6, 1, "float64")
    assert set(found) <= documented


def test_people_get_tables(shelf, tmp_path):
    trained = done("train", shelf / "train.zarr", *FAST, "--out", tmp_path / "m.model")
    assert "hold-out rmse" in trained.out
    assert "training: 2,000 of 2,000 rows" in trained.err
    assert sum(not line.startswith("warning") for line in trained.out.splitlines()) <= 12
    assert trained.out.splitlines()[-1].split() == [
        "next", "streamrf", "predict", str(tmp_path / "m.model"), "NEW_DATA", "--out", "predictions.parquet",
    ]  # fmt: skip
    assert "baseline" in trained.out
    assert not done("evaluate", tmp_path / "m.model", shelf / "test.zarr", "--quiet").err
    confusion = done("evaluate", shelf / "cls.model", shelf / "labels.parquet", "--target", "size").out
    assert "rows: truth, columns: prediction" in confusion
    assert re.search(r"baseline +error 0\.6\d+ \(always (low|middle|high)\), log loss 1\.09", confusion)
    assert re.search(r"class +rows +precision +recall +f1\nhigh +500 ", confusion)
    assert "(always the mean)" in done("evaluate", tmp_path / "m.model", shelf / "test.zarr").out
    assert "memory, projected" in done("plan", shelf / "train.zarr", "--D", "100").out
    assert done("inspect", tmp_path / "m.model").out.startswith("kind")


def test_many_classes_have_lines_for_the_worst(capsys):
    figures = {"rows": 3, "precision": 0.5, "recall": None, "f1": 0.5}
    by_class = [{"class": f"c{i}", **figures, "f1": None if i == 9 else i / 20} for i in range(12)]
    print_metrics({"baseline": {"rmse": 1.0}, "by_class": by_class, "confusion": [[0.5]]}, ("c0",))
    out = capsys.readouterr().out
    assert "worst 10 of 12 classes" in out
    assert [name for name in out.split() if name.startswith("c") and name[1:].isdigit()] == [
        "c0", "c9", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c0", "c0",
    ]  # fmt: skip


def test_evaluate_counts_a_row_as_often_as_its_weight_says(shelf, tmp_path):
    X, c = labelled(300, seed=4)
    times = np.random.default_rng(5).integers(0, 4, 300)
    names = np.array(["low", "middle", "high"])
    again = np.repeat(np.arange(300), times)
    write_parquet(tmp_path / "weighted.parquet", X, names[c], "size", people=times)
    write_parquet(tmp_path / "repeated.parquet", X[again], names[c[again]], "size")
    weighted = done(
        "evaluate", shelf / "cls.model", tmp_path / "weighted.parquet", "--sample-weight", "people", "--json"
    )
    repeated = done("evaluate", shelf / "cls.model", tmp_path / "repeated.parquet", "--json").json
    found = weighted.json
    assert found["weight"] == repeated["rows"] == times.sum()
    assert found["rows"] == (times > 0).sum()
    assert found["confusion"] == repeated["confusion"]
    for name in ("error", "balanced_accuracy", "log_loss", "brier", "calibration_error"):
        assert found[name] == pytest.approx(repeated[name], rel=1e-12)
    python = evaluate(shelf / "cls.model", tmp_path / "weighted.parquet", sample_weight="people")
    assert python == found
    write_parquet(tmp_path / "nothing.parquet", X, names[c], "size", people=0 * times)
    answer = streamrf("evaluate", shelf / "cls.model", tmp_path / "nothing.parquet", "--sample-weight", "people")
    assert "none of the 300 rows has a positive weight: check --sample-weight" in answer.err


def test_help_is_there_for_every_command():
    assert "Examples:" in done("--help").out
    for command in PROMISED:
        assert "Examples:" in done(command, "--help").out


# -- bad input: one sentence, the right exit code, nothing left behind


def bad_table(change):
    """A case whose data is a small zarr table that ``change`` has spoilt."""

    def make(folder, shelf):
        return [write_zarr(folder / "t.zarr", *change(*smooth(300)), chunk=100)]

    return make


def with_value(array, place, value):
    array = array.copy()
    array[place] = value
    return array


def truncated_zarr(folder, shelf):
    path = write_zarr(folder / "t.zarr", *smooth(300), chunk=100)
    chunk = next(path for path in sorted((folder / "t.zarr" / "X").rglob("*")) if path.is_file() and path.suffix == "")
    chunk.write_bytes(chunk.read_bytes()[:-20])
    return [path]


def truncated_parquet(folder, shelf):
    whole = (shelf / "test.parquet").read_bytes()
    (folder / "t.parquet").write_bytes(whole[: len(whole) // 2])
    return [folder / "t.parquet"]


def different_lengths(folder, shelf):
    (folder / "t").mkdir()
    np.save(folder / "t" / "X.npy", np.zeros((10, 2)))
    np.save(folder / "t" / "y.npy", np.zeros(9))
    return [folder / "t"]


def no_rows(folder, shelf):
    return [write_parquet(folder / "t.parquet", np.zeros((0, 2)), np.zeros(0))]


def other_columns(folder, shelf):
    X, y = smooth(300)
    return [shelf / "train.zarr", write_zarr(folder / "t.zarr", X[:, :5], y)]


BAD_DATA = {
    "no such file": (lambda f, s: [f / "no.zarr"], errors.StorageError, "no.zarr does not exist"),
    "nothing matches": (lambda f, s: [f / "*.parquet"], errors.StorageError, "nothing matches"),
    "unknown format": (lambda f, s: [s / "reg.model"], errors.DataError, "no format that can be read"),
    "no such array": (lambda f, s: [s / "train.zarr", "--y", "Y"], errors.DataError, "no array 'Y'.*did you mean 'y'"),
    "no such column": (lambda f, s: [s / "parts", "--target", "z"], errors.DataError, "no column 'z'"),
    "X and y of different length": (different_lengths, errors.DataError, "10 rows but y.npy has 9"),
    "no rows": (no_rows, errors.DataError, "no rows"),
    "NaN in X": (
        bad_table(lambda X, y: (with_value(X, (123, 4), np.nan), y)), errors.DataError,
        r"nan in column 4 of X in row 123 \(chunk of rows 100:200\).*--nan drop",
    ),
    "inf in X": (
        bad_table(lambda X, y: (with_value(X, (7, 0), -np.inf), y)), errors.DataError, "-inf in column 0 of X in row 7"
    ),
    "NaN in y": (
        lambda f, s: [*bad_table(lambda X, y: (X, with_value(y, 5, np.nan)))(f, s), "--nan", "error"],
        errors.DataError, "1 of 300 targets",
    ),
    "non-numeric column": (
        lambda f, s: [s / "labels.parquet", "--target", "size", "--categories", "error"], errors.DataError,
        "'id'.*numeric",
    ),
    "constant target": (
        lambda f, s: [*bad_table(lambda X, y: (X, y * 0 + 3))(f, s), "--task", "regression"], errors.DataError,
        r"the target is constant \(3\)",
    ),
    "one class only": (bad_table(lambda X, y: (X, np.full(len(X), 2))), errors.DataError, r"one class only \(2\)"),
    "labels as numbers": (
        lambda f, s: [s / "labels.parquet", "--target", "size", "--exclude", "id", "--task", "regression"],
        errors.DataError, "labels, not numbers",
    ),
    "numbers as labels": (
        lambda f, s: [s / "train.zarr", "--task", "classification"], errors.DataError, "more than 1000 different labels"
    ),
    "truncated chunk": (truncated_zarr, errors.DataError, "chunk with rows 0:100 of X .* truncated or corrupt"),
    "truncated parquet": (truncated_parquet, errors.DataError, "t.parquet is truncated or corrupt"),
    "shards of other columns": (other_columns, errors.DataError, "train.zarr has columns 6 and .*t.zarr 5"),
}  # fmt: skip


ABOUT_COLUMNS = {
    "--target": "size", "--features": "a,b", "--exclude": "a", "--missing": "median", "--categorical": "a",
    "--categories": "ordinal", "--max-levels": "5",
}  # fmt: skip


@pytest.mark.parametrize("option", ABOUT_COLUMNS)
def test_columns_are_not_chosen_in_arrays(shelf, tmp_path, option):
    """They were passed over in silence, and a column that was to be left out was learned from."""
    done("convert", shelf / "labels.parquet", tmp_path / "n.zarr", "--target", "size", "--exclude", "id", "--quiet")
    given = (option, ABOUT_COLUMNS[option])
    for data in ([tmp_path / "n.zarr"], [shelf / "arrays"], [shelf / "train.zarr", "--sample-weight", "y"]):
        answer = streamrf("train", *data, *given, *FAST, "--out", tmp_path / "m.model", "--quiet")
        assert answer.code == errors.InputError.exit_code
        assert re.search(rf"{option} .*parquet.*{data[0].name}.*--x and --y.*streamrf convert", answer.sentence)
    assert not (tmp_path / "m.model").exists()
    if option in ("--target", "--features", "--exclude"):
        answer = streamrf("evaluate", shelf / "cls.model", tmp_path / "n.zarr", *given, "--quiet")
        assert answer.code == errors.InputError.exit_code
        converted = streamrf("convert", tmp_path / "n.zarr", tmp_path / "again.zarr", *given)
        assert converted.code == errors.InputError.exit_code
        assert f"{option} is about tables with named columns, and the input is zarr" in converted.sentence


def test_arrays_as_parquet_have_columns_to_choose(shelf, tmp_path):
    """As the refusal says."""
    done("convert", shelf / "train.zarr", tmp_path / "t.parquet", "--quiet")
    done("train", tmp_path / "t.parquet", "--exclude", "x0", *FAST, "--out", tmp_path / "m.model", "--quiet")
    assert Model.load(tmp_path / "m.model").feature_names == ("x1", "x2", "x3", "x4", "x5")


CLUSTER = {
    "--workers": "2", "--scheduler": "tcp://nowhere:1", "--tls-ca": "ca.pem", "--tls-cert": "c.pem", "--tls-key": "k",
}  # fmt: skip
CANNOT_STREAM = CLUSTER | {"--target": "size", "--features": "a,b", "--exclude": "a"}
FILES = ("rows.csv", "rows.jsonl", "rows.arrow")  # a cluster reads these as the tables that they are converted to


@pytest.mark.parametrize(
    ("data", "option"),
    [("-", option) for option in CANNOT_STREAM]
    + [(data, option) for data in FILES for option in CANNOT_STREAM if option not in CLUSTER],
)
def test_what_rows_as_they_come_cannot_have(shelf, tmp_path, data, option):
    answer = streamrf("predict", shelf / "cls.model", data, option, CANNOT_STREAM[option], "--out", tmp_path / "o.csv")
    assert answer.code == errors.InputError.exit_code
    assert answer.sentence.startswith(f"streamrf: {option} is for tables that are read in parts")
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize("case", BAD_DATA)
def test_bad_data(shelf, tmp_path, case):
    make, error, pattern = BAD_DATA[case]
    check_training_refused(make(tmp_path, shelf), error, pattern, shelf, tmp_path)


BAD_OPTIONS = {
    "D < 1": ("--D 0", errors.InputError, "--D 0: .* from 1 to"),
    "D is no number": ("--D many", errors.InputError, "'many' is not a valid int"),
    "odd pairs": ("--D 3 --form pairs", errors.InputError, "must be even"),
    "no such kernel": ("--kernel tri", errors.InputError, "no kernel 'tri'"),
    "no such map": ("--map tri", errors.InputError, "--map tri: .*orthogonal"),
    "no such scaling": ("--scaling x", errors.InputError, "--scaling x: .*minmax"),
    "no such precision": ("--bits 9", errors.InputError, "--bits 9: .*8, 12"),
    "no such option": ("--kernle gaussian", errors.InputError, "No such option"),
    "a map that does not fit the kernel": ("--kernel cauchy --map sorf", errors.InputError, "sorf .*cauchy"),
    "both widths": ("--kernel gaussian --gamma 1 --length-scale 2", errors.InputError, "not both"),
    "gamma of what": ("--gamma 1", errors.InputError, "name one, such as --kernel"),
    "width zero": ("--length-scale 0", errors.InputError, "--length-scale 0.0: must be a positive number"),
    "width NaN": ("--length-scale nan", errors.InputError, "--length-scale nan: must be a positive number"),
    "width without end": ("--length-scale inf", errors.InputError, "--length-scale inf: must be a positive number"),
    "lambda below zero": ("--lambda -1", errors.InputError, "--lambda -1.0: must be zero or a positive number"),
    "lambda without end": ("--lambda inf", errors.InputError, "--lambda inf: must be zero or a positive number"),
    "hold-out of all": ("--holdout 1", errors.InputError, "--holdout 1.0: must be from 0 to below 1"),
    "a seed below zero": ("--seed -1", errors.InputError, "--seed -1: must be zero or a positive"),
    "a size that is none": ("--memory 2XB", errors.InputError, "'2XB' .*write for example 2GB"),
    "a time that is none": ("--checkpoint-every soon", errors.InputError, "'soon' .*write for example 30s"),
    "nothing to resume": ("--resume", errors.InputError, "no checkpoint at .*new run"),
    "too little memory": (
        "--D 40000 --memory 2GB --solver cholesky", errors.BudgetError,
        r"projected to need [\d.]+ GB .* the budget is 2.00 GB: raise --memory, or lower --D",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(shelf, tmp_path, case):
    options, error, pattern = BAD_OPTIONS[case]
    check_training_refused([shelf / "train.zarr", *options.split()], error, pattern, shelf, tmp_path)


def test_a_place_where_nothing_can_be_made(shelf, tmp_path):
    args = [shelf / "train.zarr", "--out", shelf / "test.parquet" / "m.model"]
    check_training_refused(args, errors.StorageError, "test.parquet is not a directory", shelf, tmp_path)


def check_training_refused(args, error, pattern, shelf, folder):
    """Refused, and everything is as it was."""
    before = everything_in(folder) | everything_in(shelf)
    out = [] if "--out" in args else ["--out", folder / "m.model"]
    answer = streamrf("train", *defaults_before(args), *out, "--checkpoint", folder / "kept", "--quiet")
    check_refusal(answer, error, pattern)
    assert everything_in(folder) | everything_in(shelf) == before


def defaults_before(args):
    """The fast settings, but for those that the case sets itself."""
    pairs = zip(FAST[::2], FAST[1::2], strict=True)
    fixed = {"--gamma": "--length-scale"}
    set_here = {fixed.get(str(arg), str(arg)) for arg in args}
    return [*args, *(word for pair in pairs if pair[0] not in set_here for word in pair)]


def check_refusal(answer, error, pattern):
    assert answer.out == ""
    assert answer.sentence.startswith("streamrf: ")
    assert re.search(pattern, answer.sentence), answer.sentence
    assert answer.code == error.exit_code
    assert "Traceback" not in answer.err


BAD_PREDICTION = {
    "no such model": (lambda f, s: [f / "no.model", s / "test.zarr"], errors.StorageError, "no.model: no such file"),
    "not a model": (lambda f, s: [s / "train.zarr", s / "test.zarr"], errors.FileFormatError, "no archive.json"),
    "wrong number of columns": (
        lambda f, s: [s / "reg.model", write_zarr(f / "t.zarr", np.zeros((9, 5)), None)], errors.DataError,
        "has 5 columns, the model was trained on 6",
    ),
    "a column is missing": (
        lambda f, s: [s / "cls.model", write_parquet(f / "t.parquet", np.zeros((9, 5)), np.zeros(9))],
        errors.DataError, "no column 'f'",
    ),
    "NaN": (
        lambda f, s: [s / "reg.model", write_zarr(f / "t.zarr", np.full((9, 6), np.nan), None)], errors.DataError,
        "nan in column 0",
    ),
    "no such format": (
        lambda f, s: [s / "reg.model", s / "test.zarr", "--out", f / "p.txt"], errors.InputError, "one of .arrow, .csv"
    ),
    "an output that exists": (
        lambda f, s: [s / "reg.model", s / "test.zarr", "--out", s / "test.parquet"], errors.ExistsError, "--overwrite"
    ),
    "no probabilities": (
        lambda f, s: [s / "reg.model", s / "test.zarr", "--proba"], errors.InputError, "no probabilities"
    ),
    "truncated": (lambda f, s: [s / "reg.model", *truncated_zarr(f, s)], errors.DataError, "truncated or corrupt"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PREDICTION)
def test_bad_prediction(shelf, tmp_path, case):
    make, error, pattern = BAD_PREDICTION[case]
    args = make(tmp_path, shelf)
    out = [] if "--out" in args else ["--out", tmp_path / "p.zarr"]
    before = everything_in(tmp_path) | everything_in(shelf)
    check_refusal(streamrf("predict", *args, *out, "--quiet"), error, pattern)
    assert everything_in(tmp_path) | everything_in(shelf) == before


BAD_EVALUATION = {
    "no targets": (
        lambda f, s: [s / "reg.model", write_zarr(f / "t.zarr", np.ones((9, 6)), None)],
        errors.DataError, "no array 'y'",
    ),
    "a label it has not seen": (
        lambda f, s: [
            s / "cls.model", write_parquet(f / "t.parquet", np.zeros((2, 6)), np.array(["low", "huge"]), "size"),
            "--target", "size",
        ],
        errors.DataError, "label 'huge' is not one of the 3 classes",
    ),
    "other outputs": (
        lambda f, s: [s / "reg.model", write_zarr(f / "t.zarr", np.ones((9, 6)), np.ones((9, 2)))],
        errors.StreamRFError, "predicts 1 outputs, the data has 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_EVALUATION)
def test_bad_evaluation(shelf, tmp_path, case):
    make, error, pattern = BAD_EVALUATION[case]
    answer = streamrf("evaluate", *make(tmp_path, shelf), "--quiet")
    if error is errors.StreamRFError:  # any of ours
        assert answer.code in range(1, 11)
        error = type("Any", (), {"exit_code": answer.code})
    check_refusal(answer, error, pattern)


def test_a_damaged_model_is_refused(shelf, tmp_path):
    shutil.copytree(shelf / "reg.model", tmp_path / "m.model")
    arrays = tmp_path / "m.model" / "arrays.safetensors"
    raw = bytearray(arrays.read_bytes())
    raw[-1] ^= 1
    arrays.write_bytes(raw)
    check_refusal(streamrf("evaluate", tmp_path / "m.model", shelf / "test.zarr"), errors.FileFormatError, "SHA-256")


def test_no_space_is_noticed(shelf, tmp_path, monkeypatch):
    monkeypatch.setattr("streamrf.support.storage.files.free_bytes", lambda path: 1000)
    answer = streamrf("train", shelf / "train.zarr", *FAST, "--out", tmp_path / "m.model", "--quiet")
    check_refusal(answer, errors.StorageError, "needs .* and 1.00 kB are free")
    assert not everything_in(tmp_path)


# -- options that change what is done


def test_an_output_is_replaced_only_on_request(shelf, tmp_path):
    out = tmp_path / "m.model"
    first = done("train", shelf / "train.zarr", *FAST, "--out", out, "--json").json
    again = streamrf("train", shelf / "train.zarr", *FAST, "--out", out, "--seed", "1")
    check_refusal(again, errors.ExistsError, "m.model already exists.*--overwrite")
    assert done("inspect", out, "--json").json["statistics_digest"] == first["statistics_digest"]
    done("train", shelf / "train.zarr", *FAST, "--out", out, "--seed", "1", "--overwrite")
    assert done("inspect", out, "--json").json["statistics_digest"] != first["statistics_digest"]


def test_overwriting_spares_what_is_not_a_model(shelf, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years")
    answer = streamrf("train", shelf / "train.zarr", *FAST, "--out", tmp_path / "thesis", "--overwrite")
    check_refusal(answer, errors.ExistsError, "not a streamrf archive")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "years"


def test_rows_with_nan_can_be_left_out(shelf, tmp_path):
    X, y = smooth(2000)
    X[[3, 700, 1999], [0, 1, 2]] = np.nan
    y[4] = np.inf
    bad = write_zarr(tmp_path / "bad.zarr", X, y)
    found = done("train", bad, *FAST, "--nan", "drop", "--out", tmp_path / "m.model", "--json").json
    assert (found["rows"], found["dropped"]) == (1996, 4)
    words = done("train", bad, *FAST, "--nan", "drop", "--out", tmp_path / "n.model").err
    assert "4 rows with NaN or infinite values were left out" in words
    assert done("evaluate", tmp_path / "m.model", bad, "--nan", "drop", "--json").json["rows"] == 1996


def test_rows_left_out_are_counted_once_however_often_a_run_stops():
    X, y = smooth(3 * PIECE)
    X[[5, 2 * PIECE + 5], 0] = np.nan
    source = ArraySource(X, y, chunk_rows=len(X))
    job = Pass.start(Moments(X.shape[1]), source, nan="drop")
    with Threads(1) as threads:
        with pytest.raises(KeyboardInterrupt):
            LocalEngine(threads).run(job, stop_at_once)
        assert (job.done.count, job.dropped) == (PIECE, 1)
        LocalEngine(threads).run(job)
    assert (job.done.count, job.dropped) == (len(X), 2)


def stop_at_once(job, pending):
    raise KeyboardInterrupt


def test_statistics_can_be_left_out(shelf, tmp_path):
    done("train", shelf / "train.zarr", *FAST, "--out", tmp_path / "m.model", "--no-statistics")
    assert not (tmp_path / "m.model" / "statistics.safetensors").exists()
    done("evaluate", tmp_path / "m.model", shelf / "test.zarr")


def test_the_pilot_can_be_told_what_is_known(shelf, tmp_path):
    found = done(
        "train", shelf / "train.zarr", "--D", "40", "--kernel", "laplacian", "--scaling", "standard", "--bits", "12",
        "--out", tmp_path / "m.model", "--threads", "1", "--json",
    ).json["chosen"]  # fmt: skip
    assert (found["kernel"], found["scaling"], found["bits"]) == ("laplacian", "standard", "12")
    assert found["length_scale"] > 0
    assert found["ridge"] > 0


def test_a_rare_class_does_not_rule_the_pilot(tmp_path):
    X, y = labelled(400, 3)
    y[7] = 3  # the only row of its class: it is not among those that judge a trial, or not among those that fit it
    data = write_zarr(tmp_path / "t.zarr", X, y)
    done("train", data, "--D", "16", "--kernel", "gaussian", "--threads", "1", "--quiet", "--out", tmp_path / "m.model")
    story = json.loads((tmp_path / "m.model" / "model.json").read_text())["story"]
    assert max(trial["error"] for trial in story["pilot"]) < 5  # in variances of the targets


def test_gamma_is_a_width(shelf, tmp_path):
    args = ("--D", "32", "--pilot", "none", "--lambda", "1e-4", "--bits", "8", "--kernel", "gaussian")
    found = done("train", shelf / "train.zarr", *args, "--gamma", "0.125", "--out", tmp_path / "m.model", "--json").json
    assert found["chosen"]["length_scale"] == pytest.approx(2.0)
    assert found["statistics_digest"] == done("inspect", shelf / "reg.model", "--json").json["statistics_digest"]


# -- bits, interrupts and kills: in processes of their own


SLOW_ROWS = 100_000  # thirteen pieces, a save after each


@pytest.fixture(scope="module")
def long_road(tmp_path_factory):
    """A table whose pass takes a while, and the digest of an uninterrupted run with two threads."""
    root = tmp_path_factory.mktemp("long")
    write_zarr(root / "long.zarr", *smooth(SLOW_ROWS), chunk=10_000)
    digest = run_alone(*long_command(root, "whole"), "--threads", "2").json["statistics_digest"]
    return root, digest


def long_command(root, name, *more):
    return [
        "train", root / "long.zarr", "--D", "600", "--pilot", "none", "--length-scale", "2", "--bits", "8", "--lambda",
        "1e-4", "--out", root / f"{name}.model", "--checkpoint-every", "0", "--json", *more,
    ]  # fmt: skip


def stop_after_a_save(command, folder, **how):
    """Start a command, let it wait after its first save, press Ctrl-C, and let it go on."""
    folder.mkdir()
    process = start("held", folder, *command, module="tests.interruptions", **how)
    deadline = time.monotonic() + 240
    while not (folder / "held").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    (folder / "go").touch()
    return process


def test_bits_do_not_depend_on_threads_or_mkl(long_road):
    root, digest = long_road
    other = run_alone(*long_command(root, "other"), "--threads", "1", STREAMRF_MKL="0")
    assert other.json["statistics_digest"] == digest


def test_ctrl_c_keeps_what_is_done(long_road, tmp_path):
    root, digest = long_road
    command = long_command(root, "stopped")
    kept = root / "stopped.model.checkpoint"
    process = stop_after_a_save(command, tmp_path / "held")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    first, second = err.splitlines()
    assert first.startswith("streamrf: stopped: ")
    assert f"of {SLOW_ROWS:,} rows are done and kept in {kept}" in first
    assert second == "continue with: streamrf " + " ".join(map(str, command))
    assert not (root / "stopped.model").exists()

    other_run = streamrf(*command, "--seed", "7")
    check_refusal(other_run, errors.MismatchError, "recipe.seed is 0 there and 7 here")

    resumed = run_alone(*command, "--resume").json
    assert (resumed["statistics_digest"], resumed["rows"]) == (digest, SLOW_ROWS)
    assert resumed["seconds"]["pilot"] == 0
    assert not kept.exists()


def test_a_terminal_is_left_as_it_was(long_road, tmp_path):
    root, _ = long_road
    ours, theirs = os.openpty()
    command = [word for word in long_command(root, "watched") if word != "--json"]
    process = stop_after_a_save(command, tmp_path / "held", stderr=theirs, TERM="xterm", COLUMNS="120")
    os.close(theirs)
    seen = read_to_end(ours)
    assert process.wait(timeout=60) == 130
    assert "rows/s" in seen
    assert "\x1b" not in seen  # no cursor that is hidden, no colour that stays
    assert re.search(r"\r +\r[^\r]*streamrf: ", seen)  # nothing of the line is left before the last words
    last = [
        line for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).replace("\r", "\n").splitlines() if line.strip()
    ]
    assert last[-2].startswith("streamrf: stopped: ")
    assert last[-1].startswith("continue with: streamrf train ")


def read_to_end(terminal):
    """All that is written to a terminal until its other end is closed."""
    seen = b""
    with contextlib.suppress(OSError):  # how Linux says that nobody writes any more
        while piece := os.read(terminal, 65_536):
            seen += piece
    os.close(terminal)
    return seen.decode()


def test_termination_is_one_sentence_wherever_it_comes(tmp_path, monkeypatch):
    """Batch systems send it before they kill; the handler of whoever called us is back afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Model, "load", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    answer = streamrf("evaluate", tmp_path / "m.model", tmp_path / "t.zarr")
    assert (answer.code, answer.err.strip()) == (130, "streamrf: stopped")
    assert signal.getsignal(signal.SIGTERM) is before


def test_kill_9_at_any_moment(long_road):
    root, digest = long_road
    command = long_command(root, "killed")
    kept = root / "killed.model.checkpoint"
    moment = random.randint(10, 60)
    process = start("killed", kept, moment, *command, module="tests.interruptions")
    process.communicate()
    assert process.returncode == -signal.SIGKILL, moment
    again = run_alone(*command).json
    assert (again["statistics_digest"], again["rows"]) == (digest, SLOW_ROWS), moment
    assert not kept.exists()
    assert not [name for name in everything_in(root) if "streamrf-" in name]
