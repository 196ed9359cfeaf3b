"""Exported models: ONNX under onnxruntime and plain numpy in a process of its own give our predictions."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import done, streamrf
from tables import labelled, smooth

from streamrf.data.columns import Handling
from streamrf.data.columns.encoding import Encoder
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Span
from streamrf.features.fourier import KINDS, kind_of
from streamrf.features.profiles import PROFILES
from streamrf.features.trees import boosting
from streamrf.features.trees.boosting import Style
from streamrf.models.export import export_model
from streamrf.models.export.numpy_script import script_text, write_script
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.solvers import stacking
from streamrf.support import errors
from streamrf.support.threads import Threads
from streamrf.training.run import Settings, train

SETTINGS = {"D": 64, "kernel": "gaussian", "length_scale": 3.0, "scaling": "standard", "bits": "8", "ridge": 1e-4}
SCALINGS = ("none", "standard", "minmax", "quantile", "log", "pca")
TARGETS = {"numbers": 0, "two outputs": 0, "two classes": 2, "three classes": 3, "words": 3}


def inputs(rows: int = 600) -> np.ndarray:
    """Columns for every branch: heavy-tailed, binary, constant."""
    X = smooth(rows, d=7)[0].astype(np.float64)
    X[:, 3], X[:, 4], X[:, 5] = np.exp(2 * X[:, 3]), X[:, 4] > 0, 1.5
    return X


def targets(kind: str) -> np.ndarray:
    y = labelled(600, TARGETS[kind])[1] if TARGETS[kind] else smooth(600)[1]
    if kind == "two outputs":
        return np.column_stack([y, y**2])
    return np.array(["low", "middle", "tall"])[y] if kind == "words" else y


def trained(target: str = "numbers", **settings) -> Model:
    recipe = Recipe(**{**SETTINGS, "pilot": "none", **settings})
    return train(ArraySource(inputs(), targets(target)), recipe, Settings(threads=1)).model


def ours(model: Model, X: np.ndarray) -> np.ndarray:
    with Threads(1) as threads:
        scores = model.scores(X, threads)
    return model.probabilities(scores) if model.is_classifier else scores


def in_onnx(model: Model, X: np.ndarray, path: Path) -> dict[str, np.ndarray]:
    ort = pytest.importorskip("onnxruntime")
    from streamrf.models.export.onnx_model import write_onnx

    write_onnx(export_model(model), path, overwrite=True)
    pytest.importorskip("onnx").checker.check_model(str(path), full_check=True)
    session = ort.InferenceSession(str(path))
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, {"X": X}), strict=True))


def in_numpy(model: Model, X: np.ndarray, path: Path) -> np.ndarray:
    """The script, run here but knowing nothing of us but its file."""
    write_script(export_model(model), path, overwrite=True)
    space = {"__file__": str(path), "__name__": "script"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return space["predict_proba" if model.is_classifier else "predict"](X)


def check(model: Model, tmp_path: Path) -> None:
    X = np.random.default_rng(5).permutation(inputs())[:200] + 0.01
    wanted = ours(model, X)
    found = in_onnx(model, X, tmp_path / "m.onnx")
    numbers = found["probabilities"] if model.is_classifier else found["prediction"]
    assert np.abs(numbers - wanted).max() < 1e-5
    assert np.abs(in_numpy(model, X, tmp_path / "m.py") - wanted).max() < 1e-5
    if model.is_classifier:
        assert np.array_equal(found["label"], model.labels(wanted.argmax(axis=1)))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind_of(kind).whole])
def test_every_map(kind, tmp_path):
    check(trained(map=kind, bits="12" if kind == "sorf" else "8"), tmp_path)


@pytest.mark.parametrize("kernel", PROFILES)
@pytest.mark.parametrize("bits", ["8", "20", "float32"])
def test_landmarks(kernel, bits, tmp_path):
    check(trained(map="landmarks", kernel=kernel, bits=bits), tmp_path)


@pytest.mark.parametrize("metric", [np.linspace(0.1, 0.5, 7), np.cos(np.arange(49.0)).reshape(7, 7) / 4])
def test_landmarks_with_a_metric(metric, tmp_path):
    document, arrays = trained("three classes", map="landmarks", bits="12").to_parts()
    check(Model.from_parts(document, {**arrays, "landmarks.factor": metric}), tmp_path)


@pytest.mark.parametrize("target", ["numbers", "two outputs", "two classes", "words"])
@pytest.mark.parametrize("scaling", ["standard", "quantile"])
def test_blends(target, scaling, tmp_path, monkeypatch):
    """Of all members, each with a share that shows."""
    monkeypatch.setattr(stacking, "LEAST_SHARE", -1.0)
    model = trained(target, map="blend", grids=20, table_bits=8, scaling=scaling, bits="12")
    turns = len(model.map.members) // 3
    kinds = [kind for kind in ("landmarks", "binning", "trees") for _ in range(turns)]
    assert [member.map.kind for member in model.map.members] == kinds
    check(model, tmp_path)
    document, arrays = model.to_parts()
    taken = np.repeat([0.5, 0.3, 0.4], turns) / turns
    shares = np.concatenate([share * np.eye(model.map.outputs) for share in taken])
    check(Model.from_parts(document, {**arrays, "weights.coefficients": shares}), tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_trees(target, tmp_path):
    X = inputs()
    y = X[:, 0] + 2 * (X[:, 1] > 0.3) * X[:, 4]
    y = np.column_stack([y, y**2]) if target == "two outputs" else y
    if TARGETS[target]:
        y = np.digitize(y, np.quantile(y, np.arange(1, TARGETS[target]) / TARGETS[target]))
    y = np.array(["low", "middle", "tall"])[y] if target == "words" else y
    model = train(ArraySource(X, y), Recipe(map="trees"), Settings(threads=1)).model
    assert model.map.kind == "trees"
    assert model.map.trees > 0
    check(model, tmp_path)


@pytest.mark.parametrize("style", [Style(64, mixed=True), Style(4096)])
def test_trees_of_both_kinds_with_places_of_levels(style, tmp_path, monkeypatch):
    monkeypatch.setattr(boosting, "STYLES", (style,))
    X, level = inputs(), np.random.default_rng(2).integers(0, 4, len(inputs()))
    X[:, 2:6] = np.eye(4)[level]
    y = X[:, 0] + np.array([3.0, 0.0, 2.0, 1.0])[level] * (X[:, 1] > 0.3)
    model = train(ArraySource(X, y), Recipe(map="trees"), Settings(threads=1)).model
    assert model.map.levels.count == 1
    assert (len(model.map.columns) > 0) == style.mixed
    assert 7 in model.map.nodes.columns
    check(model, tmp_path)


def test_trees_that_found_nothing_to_cut(tmp_path):
    """All columns are constant: the model is one number, and so is what is exported."""
    recipe = Recipe(map="trees", pilot="none")
    source = ArraySource(np.ones((600, 7)), targets("two classes"))
    model = train(source, recipe, Settings(threads=1)).model
    assert model.map.trees == 0
    check(model, tmp_path)


@pytest.mark.parametrize("target", ["numbers", "three classes"])
def test_random_binning(target, tmp_path):
    model = trained(target, map="binning", kernel="laplacian", bits="auto", grids=30, table_bits=10)
    assert model.map.kind == "binning"
    check(model, tmp_path)


@pytest.mark.parametrize("bits", ["7", "8", "12", "float32", "float64"])
@pytest.mark.parametrize("form", ["phase", "pairs"])
def test_every_precision_and_form(bits, form, tmp_path):
    check(trained(map="mc", bits=bits, form=form), tmp_path)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_every_scaling(scaling, tmp_path):
    check(trained(scaling=scaling, map="mc"), tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target(target, tmp_path):
    check(trained(target, map="mc"), tmp_path)


@pytest.mark.parametrize(
    ("loss", "target"), [("logistic", "three classes"), ("squared-hinge", "two classes"), ("huber", "numbers")]
)
def test_other_losses(loss, target, tmp_path):
    check(trained(target, map="mc", loss=loss), tmp_path)


@pytest.mark.parametrize("kind", ["mc", "sorf", "fastfood"])
@pytest.mark.parametrize("bits", ["8", "12"])
@pytest.mark.parametrize("unrounded", [True, False])
def test_features_are_the_same(kind, bits, unrounded, tmp_path):
    """That is the reason for the script's steps: one bit of a cosine may be another integer."""
    model = trained(map=kind, bits=bits, D=256)
    model.pipeline = replace(model.pipeline, unrounded=unrounded)  # models of the first versions serve integers
    write_script(export_model(model), tmp_path / "m.py")
    space = {"__file__": str(tmp_path / "m.py"), "__name__": "script"}
    exec(compile((tmp_path / "m.py").read_text(), "m.py", "exec"), space)
    X = inputs()
    features = model.map.block(len(X), np.float32 if unrounded else np.int16)
    with Threads(1) as threads:
        model.map.compute(model.scaling.transform(X), features, threads)
    assert np.array_equal(space["features"](space["scale"](X)), features[:, :256])


# -- columns with names and types of their own


def table_model(columns: dict[str, Any], y: np.ndarray, path: Path, **handling: Any) -> tuple[Model, np.ndarray]:
    """A model of raw columns, and its answers for them."""
    pq.write_table(pa.table({**columns, "target": y}), path)
    source = open_source(path, target="target", columns=Handling(**handling))
    recipe = Recipe(**{**SETTINGS, "pilot": "none", "map": "mc"})
    model = train(source, recipe, Settings(threads=1)).model
    return model, ours(model, source.read(Span(0, source.n_rows)).X)


@pytest.mark.parametrize("target", ["numbers", "words"])
def test_columns_may_have_any_names(target, tmp_path):
    """`convert` calls them c0, c1, ... where a file does not; others are called as parts of the graph are."""
    onnx, ort = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    from streamrf.models.export.onnx_model import write_onnx

    names = ["c0", "v0", "v3", "prediction", "prediction_", "label", "probabilities", "s_c0", "s__v1", "X", "n", ""]
    columns = dict(zip(names, smooth(600, d=len(names))[0].T, strict=True)) | {"c1": ["a", "b", "c"] * 200}
    model, wanted = table_model(columns, targets(target), tmp_path / "t.parquet")
    told = write_onnx(export_model(model), tmp_path / "m.onnx")
    columns["s___unnamed"] = columns.pop("")  # ONNX knows no empty names
    assert sorted(told["inputs"]) == sorted(columns)
    assert told["outputs"] == (["prediction__"] if target == "numbers" else ["label_", "probabilities_"])
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    feed = {name: np.asarray(values, np.float64)[:, None] for name, values in columns.items() if name != "c1"}
    found = ort.InferenceSession(str(tmp_path / "m.onnx")).run(
        told["outputs"][-1:], {**feed, "c1": np.array(columns["c1"], object)[:, None]}
    )
    assert np.abs(found[0] - wanted).max() < 1e-5


RAW = {
    "zip": [1067, 4109, 80331] * 200,
    "grade": [1.0, 1.5, 2e-7, 1e20] * 150,
    "lift": [True, False] * 300,
    "note": ["", "none", "?x", "7"] * 150,
    "pets": [False, True] * 300,
    "area": np.linspace(0.1, 9, 600, dtype=np.float32),
}
CATEGORIES = ("zip", "grade", "lift", "note")
LATER: dict[str, list[Any]] = {
    "zip": [1067, 4109.0, "01067", "x", "80331.0", True, "1e9"],
    "grade": [1, 2e-7, "2e-7", np.inf, "1.50", "inf", 1e20],
    "lift": [True, "False", "0", None, "so", 1, np.nan],
    "note": ["", "none", "?x", None, "more", 7.0, np.nan],
    "pets": [True, "false", 1.0, "True", 0, 1, 0.0],
    "area": [0.1, "0.3", 1, 2.5, 1 / 3, 3.0, -7e-9],
}


def one_by_one(model: Model, columns: dict[str, list[Any]]) -> np.ndarray:
    """As the model codes each row alone, so that each value has the type it was given in."""
    rows, encoder = np.empty((7, model.columns.width), model.columns.dtype), Encoder(model.columns)
    for i, row in enumerate(rows):
        table = {name: pa.array([values[i]]) for name, values in columns.items()}
        encoder.encode(pa.table(table), row[None])
    return rows


def typed(name: str, values: list[Any]) -> list[Any]:
    """Text for numbers is for the reader of CSV to make numbers of."""
    numbers = {"pets": {"false": False, "True": True}, "area": {"0.3": 0.3}}.get(name, {})
    return [numbers.get(value, value) if isinstance(value, str) else value for value in values]


@pytest.mark.parametrize("missing", ["median", "error"])
@pytest.mark.parametrize("categories", ["onehot", "ordinal"])
def test_the_script_codes_columns_as_the_model_does(categories, missing, tmp_path):
    handling = {"categorical": CATEGORIES, "categories": categories, "missing": missing}
    gaps = {name: [None, *RAW[name][1:]] for name in CATEGORIES} if missing == "median" else {}
    model, _ = table_model(RAW | gaps, targets("numbers"), tmp_path / "t.parquet", **handling)
    assert model.columns.dtype == "float32"
    write_script(export_model(model), tmp_path / "m.py")
    space = {"__file__": str(tmp_path / "m.py"), "__name__": "script"}
    exec(compile((tmp_path / "m.py").read_text(), "m.py", "exec"), space)
    wanted = one_by_one(model, {name: typed(name, values) for name, values in LATER.items()})
    assert np.array_equal(space["code"](LATER), wanted, equal_nan=True)


def test_the_script_reads_csv_as_we_do(tmp_path, monkeypatch, capsys):
    columns = {name: RAW[name] for name in ("zip", "pets", "area")} | {"note": ["a", "", None] * 200}
    handling = {"categorical": ("zip",), "missing": "median"}
    model, _ = table_model(columns, targets("numbers"), tmp_path / "t.parquet", **handling)
    model.save(tmp_path / "m.model")
    write_script(export_model(model), tmp_path / "m.py")
    (tmp_path / "t.csv").write_text(
        "zip,pets,area,note\n01067,true, 0.25 ,a\n4109.0,False,NA, b\n?,0,1e0,\n1,1,7,NULL\n"
    )
    done("predict", tmp_path / "m.model", tmp_path / "t.csv", "--out", tmp_path / "o.csv", "--quiet")
    monkeypatch.setattr(sys, "argv", ["m.py", str(tmp_path / "t.csv")])
    space = {"__file__": str(tmp_path / "m.py"), "__name__": "__main__"}
    exec(compile((tmp_path / "m.py").read_text(), "m.py", "exec"), space)
    found, wanted = (
        np.array([float(row["prediction"]) for row in csv.DictReader(io.StringIO(text))])
        for text in (capsys.readouterr().out, (tmp_path / "o.csv").read_text())
    )
    assert len(wanted) == 4
    assert np.abs(found - wanted).max() < 1e-5


# -- as a user does it


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("export")
    trained("words", map="mc").save(place / "words.model")
    return place


def test_the_script_runs_without_streamrf(saved):
    done("export", saved / "words.model", "--numpy", saved / "words.py")
    X = inputs()[:40]
    with open(saved / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([[f"c{j}" for j in range(7)], *X.tolist()])
    code = (
        "import sys; sys.modules['streamrf'] = None; sys.argv = ['words.py', 'rows.csv']; exec(open('words.py').read())"
    )
    env = {**os.environ, "PYTHONPATH": ""}
    ran = subprocess.run(
        [sys.executable, "-c", code.replace("exec(", "__file__ = 'words.py'; exec(")], cwd=saved, env=env,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    model = Model.load(saved / "words.model")
    wanted = ours(model, X)
    found = np.array([[float(row[f"p_{label}"]) for label in ("low", "middle", "tall")] for row in rows])
    assert np.abs(found - wanted).max() < 1e-5
    assert [row["prediction"] for row in rows] == model.labels(wanted.argmax(axis=1)).tolist()
    assert len((saved / "words.py").read_text().splitlines()) < 100
    assert "streamrf" not in script_text(export_model(model), "words.py").split('"""')[2]


def test_the_command_names_inputs_and_outputs(saved):
    pytest.importorskip("onnx")
    found = done("export", saved / "words.model", "--onnx", saved / "words.onnx", "--json").json
    assert (found["inputs"], found["outputs"]) == (["X"], ["label", "probabilities"])
    again = streamrf("export", saved / "words.model", "--onnx", saved / "words.onnx")
    assert again.code == errors.ExistsError.exit_code
    done("export", saved / "words.model", "--onnx", saved / "words.onnx", "--overwrite")


@pytest.mark.parametrize(
    ("options", "words"),
    [([], "--onnx OUT.onnx"), (["--onnx", "m.txt"], "must end with .onnx"), (["--numpy", "my-model.py"], "import it")],
)
def test_slips_are_told(saved, options, words):
    answer = streamrf("export", saved / "words.model", *options)
    assert answer.code == errors.InputError.exit_code
    assert words in answer.sentence
    assert answer.out == ""
