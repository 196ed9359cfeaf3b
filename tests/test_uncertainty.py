"""Predictive deviations against dense Bayesian regression, and their coverage on data drawn from the model."""

import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import done, streamrf
from scipy.stats import multivariate_normal
from tables import labelled, smooth, write_zarr

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.features.kernels import make_kernel
from streamrf.features.pipeline import build_fourier
from streamrf.features.precision import make_precision
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.models.model import Model
from streamrf.models.uncertainty import Posterior, attach_posterior, best_ridge
from streamrf.recipe import Recipe
from streamrf.statistics.gram import Gram
from streamrf.support.errors import InputError
from streamrf.support.threads import ALONE
from streamrf.training.run import Settings, train

D, ROWS, RIDGE, NOISE = 40, 400, 2e-4, 0.3
FIXED = ("--pilot", "none", "--length-scale", "2", "--D", "50", "--no-checkpoint", "--threads", "1", "--json")


def drawn(seed, rows=ROWS, noise=NOISE, ridge=RIDGE, n=ROWS):
    """Rows whose targets come from the model itself: weights from the prior, noise on top. Map, inputs, targets."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 3))
    map = build_fourier(
        "mc", make_kernel("gaussian", length_scale=1.5), D, 3, form="phase", precision=make_precision("float64"), seed=7
    )
    w = rng.standard_normal(D) * noise / np.sqrt(n * ridge)
    return map, X, map.dense(X, ALONE) @ w + noise * rng.standard_normal(rows) + 5


def sums(map, X, y):
    coding = TargetCoding.regression(y.min()[None], y.max()[None])
    gram = Gram.on_this_machine(fit_scaling("none", X), map, coding, 1)
    state = gram.zero()
    gram.update(state, Block(X, y, np.arange(len(X))), ALONE)
    return state, coding


def test_deviations_and_noise_are_those_of_the_dense_formulas():
    map, X, y = drawn(0)
    posterior = Posterior.from_state(*with_coding(map, X, y), RIDGE, ALONE)
    Z = map.dense(X, ALONE)
    Zc, yc, n = Z - Z.mean(axis=0), y - y.mean(), len(y)
    A = Zc.T @ Zc + n * RIDGE * np.eye(D)
    w = np.linalg.solve(A, Zc.T @ yc)
    noise = (yc @ yc - yc @ Zc @ w) / n
    assert posterior.noise[0] == pytest.approx(noise, rel=1e-9)
    variance = noise * (1 + 1 / n + np.einsum("ij,jk,ik->i", Zc, np.linalg.inv(A), Zc))
    np.testing.assert_allclose(posterior.deviations(map, X, ALONE)[:, 0], np.sqrt(variance), rtol=1e-8)


def with_coding(map, X, y):
    state, coding = sums(map, X, y)
    return state, map, coding


def test_the_evidence_is_the_density_of_the_targets():
    map, X, y = drawn(1, rows=60)
    posterior = Posterior.from_state(*with_coding(map, X, y), RIDGE, ALONE)
    Z = map.dense(X, ALONE)
    Zc, yc, s2 = Z - Z.mean(axis=0), y - y.mean(), posterior.noise[0]
    cover = s2 * (np.eye(60) + Zc @ Zc.T / (60 * RIDGE))
    assert posterior.evidence[0] == pytest.approx(multivariate_normal(np.zeros(60), cover).logpdf(yc), rel=1e-9)


def test_intervals_cover_what_they_promise():
    """Over many draws of weights and noise: 68.3 % within one deviation, 95.4 % within two, for rows never seen."""
    within = []
    for seed in range(60):
        map, X, y = drawn(seed, rows=ROWS + 100)
        posterior = Posterior.from_state(*with_coding(map, X[:ROWS], y[:ROWS]), RIDGE, ALONE)
        Z = map.dense(X, ALONE)
        Zc, yc = Z[:ROWS] - Z[:ROWS].mean(axis=0), y[:ROWS] - y[:ROWS].mean()
        w = np.linalg.solve(Zc.T @ Zc + ROWS * RIDGE * np.eye(D), Zc.T @ yc)
        mean = y[:ROWS].mean() + (Z[ROWS:] - Z[:ROWS].mean(axis=0)) @ w
        within.append(np.abs(y[ROWS:] - mean) / posterior.deviations(map, X[ROWS:], ALONE)[:, 0])
    ratios = np.concatenate(within)
    assert (ratios < 1).mean() == pytest.approx(0.683, abs=0.025)
    assert (ratios < 2).mean() == pytest.approx(0.954, abs=0.012)


def test_the_noise_level_and_lambda_are_found_again():
    found = []
    for seed in range(10):
        map, X, y = drawn(seed, rows=2000, n=2000)
        state, map, coding = with_coding(map, X, y)
        ridge, _ = best_ridge(state, map, coding, ALONE)
        found.append((ridge, np.sqrt(Posterior.from_state(state, map, coding, ridge, ALONE).noise[0])))
    ridges, noises = np.array(found).T
    assert np.median(noises) == pytest.approx(NOISE, rel=0.05)
    assert RIDGE / 3 < np.median(ridges) < 3 * RIDGE


def test_far_from_all_data_is_less_sure():
    map, X, y = drawn(3)
    posterior = Posterior.from_state(*with_coding(map, 0.2 * X, y), 1e-5, ALONE)
    near, far = (posterior.deviations(map, rows, ALONE).mean() for rows in (0.2 * X, 0.2 * X + 3))
    assert far > 1.2 * near


def test_predict_writes_deviations(tmp_path):
    X, y = smooth(500)
    data = write_zarr(tmp_path / "t.zarr", X, np.stack([y, -2 * y], axis=1))
    model, out = tmp_path / "m.model", tmp_path / "p.parquet"
    done("train", data, "--out", model, *FIXED)
    done("predict", model, data, "--out", out, "--std", "--threads", "1")
    found = pq.read_table(out).to_pandas()
    assert list(found.columns) == ["prediction_0", "prediction_1", "std_0", "std_1"]
    np.testing.assert_allclose(found["std_1"], 2 * found["std_0"], rtol=1e-3)
    loaded = Model.load(model)
    attach_posterior(loaded, model, ALONE)
    np.testing.assert_allclose(found["std_0"], loaded.deviations(X, ALONE)[:, 0], rtol=1e-12)
    there = pickle.loads(pickle.dumps(loaded))  # what a cluster does
    assert np.array_equal(there.deviations(X, ALONE), loaded.deviations(X, ALONE))


def refused(tmp_path, y, recipe, pattern, keep=True):
    X = smooth(300)[0]
    result = train(ArraySource(X, y), recipe, Settings(threads=1))
    result.model.save(tmp_path / "m.model", state=result.state if keep else None)
    with pytest.raises(InputError, match=pattern):
        attach_posterior(Model.load(tmp_path / "m.model"), tmp_path / "m.model", ALONE)


@pytest.mark.parametrize(
    ("changes", "pattern"), [({"loss": "huber"}, "huber loss"), ({"solver": "cg"}, "`solver='cholesky'`")]
)
def test_models_without_a_posterior_say_so(tmp_path, changes, pattern):
    recipe = Recipe(D=30, kernel="gaussian", length_scale=2.0, scaling="standard", pilot="none", bits="8", **changes)
    refused(tmp_path, smooth(300)[1], recipe, pattern)


def test_classes_have_no_deviation(tmp_path):
    recipe = Recipe(D=30, kernel="gaussian", length_scale=2.0, scaling="standard", pilot="none", bits="8")
    refused(tmp_path, labelled(300)[1], recipe, "predicts classes")


def test_sums_that_were_not_kept_are_missed(tmp_path):
    recipe = Recipe(D=30, kernel="gaussian", length_scale=2.0, scaling="standard", pilot="none", bits="8")
    refused(tmp_path, smooth(300)[1], recipe, "without its statistics", keep=False)


def test_models_of_other_solvers_say_why_they_have_no_sums(tmp_path):
    recipe = Recipe(D=30, kernel="gaussian", length_scale=2.0, scaling="standard", pilot="none", bits="8", solver="cg")
    model = train(ArraySource(*smooth(300)), recipe, Settings(threads=1)).model
    model.save(tmp_path / "m.model")
    answer = streamrf("update", tmp_path / "m.model", write_zarr(tmp_path / "t.zarr", *smooth(300)))
    assert answer.code == InputError.exit_code
    assert "--solver cg, which leaves no sums" in answer.sentence
