"""Preconditioners against dense inverses, and how few steps conjugate gradients need with them."""

from dataclasses import replace

import numpy as np
import pytest
from test_conjugate_gradients import DenseSystem
from test_gradient import D, features, make_gradient, table

from streamrf.features.kernels import make_kernel
from streamrf.features.pipeline import build_fourier
from streamrf.features.precision import make_precision
from streamrf.solvers.conjugate_gradients import ConjugateGradients, jacobi
from streamrf.solvers.factors import EigenFactor, PrimalFactor, SampleGram, Spectrum, leading
from streamrf.solvers.preconditioners import NystromFactor, SampleFactor, SampleRows, random_directions
from streamrf.support.errors import NumericalError
from streamrf.support.threads import ALONE, Threads


def sample(bits="8", rows=90, weights=None, threads=ALONE):
    gradient, (X, _) = make_gradient(bits), table()
    X = gradient.scaling.transform(X, gradient.map.precision.inputs)
    centre = features(gradient, table()[0]).mean(axis=0)
    return gradient, SampleRows.of(gradient.map, X[:rows], centre, threads, weights)


def dense_root(gradient, rows, centre, weights=None):
    """Rows of a square root of the sample's S, by its definition."""
    weights = np.ones(rows) if weights is None else weights
    Z = (features(gradient, table()[0])[:rows] - centre) * gradient.map.amplitudes
    return np.sqrt(weights / weights.sum())[:, None] * Z


@pytest.mark.parametrize("bits", ["7", "8", "12", "float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_sample_factor_is_the_inverse_of_the_samples_system(bits, weighted):
    weights = np.random.default_rng(0).random(90) + 0.1 if weighted else None
    gradient, rows = sample(bits, weights=weights)
    root = dense_root(gradient, 90, rows.centre, weights)
    R = np.random.default_rng(1).standard_normal((3, D))
    for ridge in (1e-2, 1e-6):
        expected = np.linalg.solve(root.T @ root + ridge * np.eye(D), R.T).T
        found = SampleFactor(rows, ALONE).exactly(ridge)(R)
        np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


def primal(bits="8", rows=280, weights=None, threads=ALONE):
    gradient, (X, _) = make_gradient(bits), table()
    X = gradient.scaling.transform(X[:rows], gradient.map.precision.inputs)
    centre = features(gradient, table()[0]).mean(axis=0)
    gram = SampleGram.of(gradient.map, X, threads, weights)
    return gradient, gram, PrimalFactor(gram, centre, gradient.map.amplitudes, threads)


@pytest.mark.parametrize("bits", ["7", "8", "12", "float32", "float64"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_primal_factor_is_the_inverse_of_the_samples_system(bits, weighted):
    weights = np.random.default_rng(0).random(280) + 0.1 if weighted else None
    gradient, gram, factor = primal(bits, weights=weights)
    centre = features(gradient, table()[0]).mean(axis=0)
    root = dense_root(gradient, 280, centre, weights)
    S = root.T @ root
    moments = np.tril(gram.centred(centre, gradient.map.amplitudes))
    np.testing.assert_allclose(moments, np.tril(S), atol=1e-6 * np.abs(S).max())
    R = np.random.default_rng(1).standard_normal((3, D))
    for ridge in (1e-1, 1e-2):
        assert ridge > factor.least
        expected = np.linalg.solve(S + ridge * np.eye(D), R.T).T
        np.testing.assert_allclose(factor.at(ridge)(R), expected, atol=1e-4 * np.abs(expected).max())


def test_the_primal_factor_is_no_surer_than_its_sample_allows():
    _, _, factor = primal(rows=D + 5)
    R = np.random.default_rng(1).standard_normal((1, D))
    assert factor.least > 1e-9
    assert np.array_equal(factor.at(1e-9)(R), factor.at(factor.least)(R))
    once = factor.at(1.0)(R)
    factor.at(0.5)
    assert np.array_equal(factor.at(1.0)(R), once)


def test_features_of_unequal_amplitudes_have_their_dual_too():
    X, _ = table()
    kernel, precision = make_kernel("gaussian", length_scale=2.0), make_precision("8")
    rng = np.random.default_rng(0)
    settings = {"form": "phase", "precision": precision, "seed": 1}
    map = build_fourier("weighted", kernel, 60, 4, sample=X[:300], targets=rng.standard_normal((300, 1)), **settings)
    rows = SampleRows.of(map, X[:40], np.zeros(60), ALONE)
    Z = map.dense(X[:40], ALONE) / np.sqrt(40)
    assert np.ptp(map.amplitudes) > 0
    np.testing.assert_allclose(np.tril(rows.dual(ALONE)), np.tril(Z @ Z.T), atol=1e-12)


def test_bits_of_the_products_do_not_depend_on_threads():
    with Threads(3) as threads:
        _, alone = sample()
        _, together = sample(threads=threads)
        V = np.random.default_rng(2).standard_normal((2, D))
        assert np.array_equal(alone.times(V), together.times(V))
        assert np.array_equal(alone.back(alone.times(V)), together.back(together.times(V)))


def test_lambda_zero_is_refused():
    _, rows = sample(rows=20)
    with pytest.raises(NumericalError, match="positive lambda"):
        SampleFactor(rows, ALONE).exactly(0.0)


def test_lanczos_finds_the_effective_dimension():
    _, rows = sample("float64", rows=300)
    K = rows.dual(ALONE)
    whole = np.tril(K) + np.tril(K, -1).T
    values = np.maximum(np.linalg.eigvalsh(whole), 0)
    spectrum = Spectrum(K)
    for mu in (1e-6, 1e-4, 1e-2):
        assert spectrum.effective_dimension(mu) == pytest.approx((values / (values + mu)).sum(), rel=0.15)
    assert spectrum.effective_dimension(spectrum.shift_for(20.0)) == pytest.approx(20.0, rel=1e-6)


def test_a_small_sample_is_not_trusted_with_a_small_lambda():
    _, rows = sample("float64", rows=60)
    factor = SampleFactor(rows, ALONE)
    R = np.random.default_rng(1).standard_normal((1, D))
    assert factor.least > 1e-9
    assert np.array_equal(factor.at(1e-9)(R), factor.exactly(factor.least)(R))
    assert np.array_equal(factor.at(1.0)(R), factor.exactly(1.0)(R))


def moments():
    gradient, (X, _) = make_gradient("float64"), table()
    Z = features(gradient, X)
    Z = (Z - Z.mean(axis=0)) * gradient.map.amplitudes / np.sqrt(len(Z))
    return Z.T @ Z


def test_a_sketch_of_full_rank_gives_the_inverse_itself():
    S, ridge = moments(), 1e-3
    test = random_directions(D, D, seed=0)
    R = np.random.default_rng(1).standard_normal((2, D))
    found = NystromFactor(test @ S, test, 1e-14).at(ridge)(R)
    expected = np.linalg.solve(S + ridge * np.eye(D), R.T).T
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


def steps_needed(S, ridge, preconditioner):
    b = np.random.default_rng(3).standard_normal((1, D)) @ S
    cg = ConjugateGradients.begin(DenseSystem(S), b, ridge, preconditioner)
    x = np.linalg.solve(S + ridge * np.eye(D), b[0])
    while np.linalg.norm(cg.state.solution[0] - x) > 1e-4 * np.linalg.norm(x):
        cg.step()
    return cg.state.iteration


def test_all_save_most_of_the_steps():
    S, ridge = moments(), 1e-4
    plain = steps_needed(S, ridge, jacobi(np.diag(S), ridge))
    _, rows = sample("float64", rows=400)
    test = random_directions(40, D, seed=0)
    by_sample = steps_needed(S, ridge, SampleFactor(rows, ALONE).at(ridge))
    by_sketch = steps_needed(S, ridge, NystromFactor(test @ S, test, 1e-12).at(ridge))
    by_features = steps_needed(S, ridge, primal("float64", rows=400)[2].at(ridge))
    assert by_sample <= plain / 3
    assert by_features <= plain / 3
    assert by_sketch <= plain / 2


def test_leading_directions_are_those_of_the_whole_spectrum():
    _, rows = sample("float64", rows=300)
    K = rows.dual(ALONE)
    whole = np.tril(K) + np.tril(K, -1).T
    values, vectors = leading(K, 20)
    np.testing.assert_allclose(values[:15], np.linalg.eigvalsh(whole)[::-1][:15], rtol=1e-3)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(20), atol=1e-10)


def test_the_factor_for_mini_batches_inverts_its_leading_directions():
    _, rows = sample("float64", rows=300)
    factor = EigenFactor.of(rows, 20, ALONE)
    S = rows.back(rows.times(np.eye(D)))
    first = factor.U[:10].astype(np.float64)
    np.testing.assert_allclose(first @ first.T, np.eye(10), atol=1e-3)
    for direction, value in zip(first, factor.values, strict=False):
        found = factor.apply(direction[None].astype(np.float32), 1e-4)[0]
        np.testing.assert_allclose(found, direction / (value + 1e-4), atol=0.02 / (value + 1e-4))
    assert factor.trace == pytest.approx(np.trace(S), rel=1e-6)
    assert factor.leverage(1e-4) > 20 * 0.5


@pytest.mark.parametrize("noise", [0.0, 1e-30])
def test_a_sketch_of_constant_features_leaves_lambda_alone(noise):
    test = random_directions(5, D, 0)
    factor = NystromFactor(noise * np.random.default_rng(0).standard_normal((5, D)), test, 1e-7)
    R = np.random.default_rng(1).standard_normal((2, D))
    np.testing.assert_allclose(factor.at(1e-3)(R), R / 1e-3, rtol=1e-9)
    with pytest.raises(NumericalError, match="positive lambda"):
        factor.at(0.0)


def test_a_sketch_of_nothing_that_could_be_squares_is_refused():
    test = random_directions(5, D, 0)
    with pytest.raises(NumericalError, match="`preconditioner='sample'`"):
        NystromFactor(-test, test, 1e-7)


@pytest.mark.parametrize("bits", ["8", "float64"])
@pytest.mark.parametrize("sign", [0, 1e-9, -1e-9])
def test_the_factor_for_mini_batches_of_constant_features_only_shrinks(bits, sign, monkeypatch):
    """Whichever way their products are rounded."""
    _, rows = sample(bits)
    rows = replace(rows, Z=np.zeros_like(rows.Z), centre=np.zeros(D))
    monkeypatch.setattr(SampleRows, "dual", lambda self, threads: sign**2 * np.sign(sign) * np.eye(90, order="F"))
    factor = EigenFactor.of(rows, 20, ALONE)
    R = np.random.default_rng(1).standard_normal((2, D)).astype(np.float32)
    np.testing.assert_allclose(factor.apply(R, 1e-3), R / np.float32(1e-3), rtol=1e-5)
    assert factor.leverage(1e-3) == pytest.approx(0.0, abs=1e-9)
