"""The public interface: its names, its types, that it loads late, and that its verbs are those of the command line."""

import json
import subprocess
import sys

import numpy as np
import pytest
from commands import FAST, PROJECT, done
from tables import labelled, smooth, write_zarr

import streamrf
from streamrf.support import errors

HEAVY = ("dask", "distributed", "numba", "numpy", "pandas", "pyarrow", "scipy", "sklearn", "zarr", "matplotlib")
QUICK = streamrf.Recipe(D=32, pilot="none", length_scale=2.0, bits="8", ridge=1e-4)


def test_the_names_are_these():
    assert sorted(streamrf.__all__) == sorted([
        "KernelClassifier", "KernelRegressor", "Model", "RandomFeatures", "Recipe", "Reporter", "Settings", "Source",
        "Statistics", "StreamRFError", "Trained", "__version__", "accumulate", "evaluate", "forget",
        "importance", "load",
        "open_source", "plan", "predict", "prepare", "train", "update",
    ])  # fmt: skip


@pytest.mark.parametrize("name", streamrf.__all__)
def test_every_name_is_there_and_explained(name):
    value = getattr(streamrf, name)
    assert name == "__version__" or value.__doc__
    assert name in dir(streamrf)


def test_every_name_is_its_own_thing_whatever_was_imported_before():
    probe = "import streamrf.training.run, streamrf; kinds = {type(getattr(streamrf, n)) for n in streamrf.__all__}"
    subprocess.run([sys.executable, "-c", f"{probe}\nassert type(streamrf) not in kinds"], check=True, cwd=PROJECT)


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        streamrf.trian  # noqa: B018


def test_it_is_typed():
    assert (PROJECT / "streamrf" / "py.typed").exists()


HELP = "from streamrf.cli import cli; cli.main(['--help'], standalone_mode=False)"


def loaded_by(code):
    probe = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=PROJECT)
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.parametrize("code", ["import streamrf", HELP])
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    loaded = loaded_by(code)
    assert [name for name in HEAVY if name in loaded] == []


def test_the_help_of_a_command_loads_what_declares_its_options_and_no_more():
    loaded = loaded_by(HELP.replace("['--help']", "['train', '--help']"))
    heavy = ("scipy.special", "scipy.linalg", "scipy.stats", "scipy.optimize", "pandas", "pyarrow", "zarr", "sklearn")
    assert [name for name in heavy if name in loaded] == []


def test_training_on_numbers_loads_no_library_that_it_does_not_use(tmp_path):
    rows = np.column_stack(smooth(300)[::-1])
    names = ",".join(["y", *(f"x{j}" for j in range(1, rows.shape[1]))])
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header=names, comments="")
    run = ["train", str(tmp_path / "rows.csv"), "--target", "y", "--D", "50", "--out", str(tmp_path / "rows.model")]
    loaded = loaded_by(f"from streamrf.cli import cli; cli.main({[*run, '--quiet']!r}, standalone_mode=False)")
    assert {"numba", "pyarrow"} <= set(loaded)
    assert [name for name in ("pandas", "scipy.stats", "sklearn", "mkl", "dask", "zarr") if name in loaded] == []


def test_the_verbs_are_those_of_the_command_line(tmp_path):
    X, y = smooth(900)
    data = write_zarr(tmp_path / "rows.zarr", X, y)
    trained = streamrf.train(data, QUICK)
    trained.model.save(tmp_path / "ours.model", state=trained.state)
    told = done("train", data, *FAST, "--out", tmp_path / "theirs.model", "--json").json
    assert told["statistics_digest"] == trained.state.digest()
    metrics = done("evaluate", tmp_path / "theirs.model", data, "--json").json
    assert streamrf.evaluate(tmp_path / "ours.model", data) == metrics
    assert streamrf.plan(data, QUICK, memory=2**32).budget == 2**32
    predicted = streamrf.predict(trained.model, X)
    assert streamrf.predict(tmp_path / "ours.model", data, out=tmp_path / "p.npy") == 900
    assert np.sqrt(np.mean((predicted - y) ** 2)) == pytest.approx(metrics["rmse"])


@pytest.mark.parametrize("classes", [None, 3])
def test_every_way_in_has_the_same_defaults(tmp_path, classes, monkeypatch):
    monkeypatch.setattr("streamrf.features.settings.DEFAULT_D", 50)  # so that the pilot is quick
    X, y = smooth(300) if classes is None else labelled(300, classes=classes)
    if classes is None:  # steps, which random binning learns best: sums of float features depend on threads
        y = np.floor(3 * X[:, 0]) % 2 + 0.1 * y
    data = write_zarr(tmp_path / "rows.zarr", X[:, :2], y)
    estimator = streamrf.KernelRegressor if classes is None else streamrf.KernelClassifier
    told = done("train", data, "--json").json
    trained, fitted = streamrf.train(data).model, estimator().fit(data).model_
    assert not trained.recipe.is_float
    assert {told["statistics_digest"]} == {model.metadata["statistics_digest"] for model in (trained, fitted)}
    assert trained.recipe == fitted.recipe.with_(task=trained.recipe.task)
    assert np.array_equal(trained.weights.coefficients, fitted.weights.coefficients)


def test_probabilities_of_classes():
    X, y = labelled(600)
    model = streamrf.train((X, y), QUICK).model
    chances = streamrf.predict(model, X, proba=True)
    assert np.array_equal(chances.argmax(axis=1), streamrf.predict(model, X))
    with pytest.raises(errors.InputError, match="no probabilities"):
        streamrf.predict(streamrf.train(smooth(300), QUICK).model, X, proba=True)


def test_statistics_add_and_subtract():
    X, y = smooth(900)
    prepared = streamrf.prepare(streamrf.open_source((X, y)), QUICK)
    whole, first, second = (
        streamrf.accumulate(prepared, streamrf.open_source((X[rows], y[rows])))
        for rows in (slice(None), slice(500), slice(500, None))
    )
    assert (first + second).digest() == whole.digest()
    assert (first + second - second).digest() == first.digest()
