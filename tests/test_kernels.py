import json
import math

import numpy as np
import pytest
from scipy import special, stats
from sklearn.gaussian_process import kernels as gp
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from streamrf.features.kernels import (
    KERNELS,
    Cauchy,
    Gaussian,
    Laplacian,
    Matern,
    kernel_from_spec,
    make_kernel,
)
from streamrf.features.median import median_length_scale
from streamrf.support.errors import FileFormatError, InputError

NAMES = (*KERNELS, "matern:0.3", "matern:4")


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def rows(rng):
    return rng.normal(size=(20, 3)), rng.normal(size=(15, 3))


# -- the exact kernel


def test_gaussian_and_laplacian_are_scikit_learns_at_the_same_gamma(rows):
    X, Y = rows
    assert np.allclose(make_kernel("rbf", gamma=0.7)(X, Y), rbf_kernel(X, Y, gamma=0.7), rtol=1e-12)
    assert np.allclose(make_kernel("laplacian", gamma=0.7)(X, Y), laplacian_kernel(X, Y, gamma=0.7), rtol=1e-12)


@pytest.mark.parametrize("nu", [0.1, 0.5, 0.8, 1.5, 2.5, 7.0, 30.0])
def test_matern_is_scikit_learns(nu, rows):
    X, Y = rows
    assert np.allclose(Matern(length_scale=1.3, nu=nu)(X, Y), gp.Matern(1.3, nu=nu)(X, Y), rtol=1e-10)


@pytest.mark.parametrize("nu", [60.0, 200.0])
def test_matern_of_large_nu_is_its_mixture_of_gaussians(nu):
    r = np.linspace(0.0, 3.0, 13)[:, None]
    quantiles = (np.arange(200_000) + 0.5) / 200_000
    mixing = nu / special.gammaincinv(nu, quantiles)
    naive = [np.mean(np.exp(-0.5 * mixing * distance**2)) for distance in r[:, 0]]
    assert np.allclose(Matern(nu=nu)(r, np.zeros((1, 1)))[:, 0], naive, atol=1e-6)


def test_matern_nears_the_gaussian_as_nu_grows(rows):
    X, Y = rows
    gaps = [np.abs(Matern(nu=nu)(X, Y) - Gaussian()(X, Y)).max() for nu in (2.5, 20.0, 49.0, 51.0, 1000.0, 10_000.0)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-4


@pytest.mark.parametrize("name", [*NAMES, "matern:0.001", "matern:49", "matern:51", "matern:10000"])
def test_kernel_falls_from_one_to_zero_at_any_distance(name):
    distances = np.concatenate([[0.0], np.geomspace(1e-12, 1e12, 200)])[:, None]
    k = make_kernel(name)(distances, np.zeros((1, 1)))[:, 0]
    assert k[0] == 1.0
    assert k[-1] < 1e-6
    assert np.all(np.diff(k) <= 1e-9)


@pytest.mark.parametrize("kernel", [Gaussian(0.8), Laplacian(0.8), Cauchy(0.8)])
def test_product_kernels_are_products_over_columns(kernel, rows):
    X, Y = rows
    factors = [kernel(X[:, [j]], Y[:, [j]]) for j in range(X.shape[1])]
    assert kernel.product
    assert np.allclose(kernel(X, Y), factors[0] * factors[1] * factors[2], rtol=1e-12)


def test_cauchy_by_naive_loops(rows):
    X, Y = rows
    naive = [[math.prod(1 / (1 + (a - b) ** 2 / 1.7**2) for a, b in zip(x, y, strict=True)) for y in Y] for x in X]
    assert np.allclose(Cauchy(1.7)(X, Y), naive, rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_radial_kernels_do_not_see_a_rotation_and_others_do(name, rows, rng):
    X, Y = rows
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    kernel = make_kernel(name)
    assert np.allclose(kernel(X, Y), kernel(X @ rotation, Y @ rotation), rtol=1e-9) == kernel.radial


@pytest.mark.parametrize("name", NAMES)
def test_kernel_of_one_argument_is_symmetric_and_of_integers_is_exact(name):
    X = np.arange(12).reshape(4, 3) % 5
    kernel = make_kernel(name, length_scale=2.0)
    K = kernel(X)
    assert K.dtype == np.float64
    assert np.array_equal(K, K.T)
    assert np.array_equal(K, kernel(X.astype(float), X.astype(np.int8)))


def test_shapes_that_cannot_be_compared_are_refused():
    with pytest.raises(InputError, match="X has 2 columns and Y has 3"):
        Gaussian()(np.zeros((4, 2)), np.zeros((4, 3)))
    with pytest.raises(InputError, match="not 1-dimensional"):
        Gaussian()(np.zeros(4))


# -- the spectral measure


@pytest.mark.parametrize("d", [1, 3, 10])
@pytest.mark.parametrize("name", NAMES)
def test_mean_cosine_of_frequencies_is_the_kernel(name, d, rng):
    kernel = make_kernel(name, length_scale=1.5)
    X = rng.normal(size=(12, d)) / math.sqrt(d)
    cosines = np.cos(kernel.sample(rng, 40_000, d) @ X.T)
    exact = kernel(X, np.zeros((1, d)))[:, 0]
    errors = (cosines.mean(axis=0) - exact) / (cosines.std(axis=0) / math.sqrt(len(cosines)))
    assert np.abs(errors).max() < 4.5


@pytest.mark.parametrize("name", NAMES)
def test_frequencies_are_finite_in_float32_even_at_the_ends_of_the_interval(name):
    kernel = make_kernel(name)
    U = np.stack([np.zeros(kernel.uniforms(2)), np.ones(kernel.uniforms(2))])
    W = kernel.frequencies(U, 2).astype(np.float32)
    assert W.shape == (2, 2)
    assert np.isfinite(W).all()


def test_frequencies_want_their_number_of_uniforms():
    with pytest.raises(InputError, match="needs 4 uniforms for 3 columns"):
        Matern().frequencies(np.full((5, 3), 0.5), 3)


@pytest.mark.parametrize("d", [1, 3, 10])
@pytest.mark.parametrize("name", [name for name in NAMES if make_kernel(name).radial])
def test_radii_have_the_law_of_the_norms_of_frequencies(name, d, rng):
    kernel = make_kernel(name, length_scale=0.6)
    radii = kernel.radii(rng.random(5000), d)
    norms = np.linalg.norm(kernel.sample(rng, 5000, d), axis=1)
    assert stats.ks_2samp(radii, norms).pvalue > 1e-3


@pytest.mark.parametrize("kernel", [Gaussian(), Matern(nu=0.5), Matern(nu=3.0), Matern(nu=0.02)])
def test_radii_grow_with_their_uniform_and_stay_finite(kernel):
    radii = kernel.radii(np.linspace(0.0, 1.0, 101), 4)
    assert np.all(np.diff(radii) >= 0)
    assert radii[0] >= 0
    assert np.isfinite(radii.astype(np.float32)).all()


@pytest.mark.parametrize("kernel", [Laplacian(), Cauchy()])
def test_radii_of_kernels_without_rotation_symmetry_are_refused(kernel):
    with pytest.raises(InputError, match=f"{kernel.name} kernel have no uniform direction.*use independent"):
        kernel.radii(np.array([0.5]), 3)


def test_bins_of_the_drawn_widths_collide_with_the_kernels_probability(rng):
    kernel = Laplacian(1.4)
    widths = kernel.bin_widths(rng.random(100_000))
    offsets = rng.random(100_000) * widths
    for gap in (0.1, 1.0, 3.0):
        collide = np.floor((gap + offsets) / widths) == np.floor(offsets / widths)
        assert abs(collide.mean() - math.exp(-gap / 1.4)) < 4.5 * 0.5 / math.sqrt(len(widths))


@pytest.mark.parametrize("kernel", [Gaussian(), Cauchy(), Matern(nu=0.5)])
def test_binning_of_other_kernels_is_refused_with_the_reason(kernel):
    with pytest.raises(InputError, match=r"cannot be drawn by random binning, because .*: use the laplacian kernel"):
        kernel.bin_widths(np.array([0.5]))


@pytest.mark.parametrize("kernel", [Gaussian(0.7), Cauchy(0.7), Matern(0.7, nu=2.5), Matern(0.7, nu=8.0)])
def test_second_moment_is_minus_the_laplacian_of_the_kernel_at_zero(kernel):
    step = 1e-3
    k_near = kernel(np.array([[step]]), np.zeros((1, 1)))[0, 0]
    assert kernel.second_moment(5) == pytest.approx(5 * 2 * (1 - k_near) / step**2, rel=0.01)


def test_second_moment_is_infinite_where_the_kernel_has_a_kink():
    assert (
        Laplacian().second_moment(3) == Matern(nu=0.5).second_moment(3) == Matern(nu=1.0).second_moment(3) == math.inf
    )


# -- names and widths


@pytest.mark.parametrize("name", NAMES)
def test_name_and_width_survive_every_round_trip(name):
    kernel = make_kernel(name, length_scale=0.37)
    assert kernel_from_spec(json.loads(json.dumps(kernel.spec()))) == kernel
    assert make_kernel(kernel.label, length_scale=0.37) == kernel
    assert make_kernel(name, gamma=kernel.gamma).length_scale == pytest.approx(0.37, rel=1e-15)
    assert kernel.with_length_scale(2.0) == make_kernel(name, length_scale=2.0)


def test_default_width_and_aliases():
    assert make_kernel("RBF") == Gaussian(1.0)
    assert make_kernel("matern12") == make_kernel("matern:0.5") == Matern(nu=0.5)


@pytest.mark.parametrize(
    ("name", "width", "message"),
    [
        ("gaussian", {"length_scale": 1.0, "gamma": 0.5}, "not both"),
        ("gaussian", {"length_scale": 0.0}, "length_scale must be a positive finite number, not 0.0"),
        ("gaussian", {"gamma": -1.0}, "gamma must be a positive finite number"),
        ("gaussian", {"length_scale": math.nan}, "positive finite"),
        ("polynomial", {}, "no kernel 'polynomial': choose one of gaussian, laplacian"),
        ("matern", {}, "no kernel 'matern'.*matern:NU"),
        ("matern:", {}, "no kernel 'matern:'"),
        ("matern:two", {}, "must be a number, not 'two'"),
        ("matern:-1", {}, "nu must be a positive finite number"),
        ("matern:1e6", {}, "above 10000: use the gaussian kernel"),
    ],
)
def test_wrong_names_and_widths_get_one_sentence(name, width, message):
    with pytest.raises(InputError, match=message):
        make_kernel(name, **width)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"name": "os"},
        {"name": "gaussian", "nu": 1.0},
        {"name": "gaussian", "length_scale": "wide"},
        {"name": "gaussian", "length_scale": None},
        {"name": ["gaussian"], "length_scale": 1.0},
        {"name": "matern", "length_scale": -1.0, "nu": 1.5},
    ],
)
def test_damaged_specs_are_refused(spec):
    with pytest.raises(FileFormatError, match="does not describe a kernel"):
        kernel_from_spec(spec)


# -- the median heuristic


@pytest.mark.parametrize("name", NAMES)
def test_heuristic_puts_the_median_kernel_value_at_one_over_e(name, rng):
    X = rng.normal(size=(600, 4))
    kernel = make_kernel(name, length_scale=median_length_scale(X, name, rng))
    K = kernel(X)[np.triu_indices(600, 1)]
    assert np.median(K) == pytest.approx(math.exp(-1), abs=0.02)


def test_heuristic_is_the_median_distance_in_the_kernels_norm(rng):
    X = np.array([[0.0, 0.0], [3.0, 4.0]])
    assert median_length_scale(X, "laplacian", rng) == pytest.approx(7.0)
    assert median_length_scale(X, "matern12", rng) == pytest.approx(5.0)
    assert median_length_scale(X, "gaussian", rng) == pytest.approx(5.0 / math.sqrt(2))


@pytest.mark.parametrize("name", NAMES)
def test_heuristic_scales_with_the_data_and_ignores_equal_rows(name, rng):
    X = np.repeat(rng.integers(0, 3, size=(20, 2)), 30, axis=0)
    scale = median_length_scale(X, name, np.random.default_rng(0))
    assert scale > 0
    assert median_length_scale(X * 1000.0, name, np.random.default_rng(0)) == pytest.approx(1000 * scale, rel=1e-6)


@pytest.mark.parametrize("X", [np.zeros((50, 3)), np.zeros((1, 3)), np.zeros((0, 3))])
def test_heuristic_of_rows_without_any_difference_is_one(X, rng):
    assert median_length_scale(X, "gaussian", rng) == 1.0


@pytest.mark.parametrize("rows", [40, 3000])
@pytest.mark.parametrize("name", ["gaussian", "laplacian", "matern32"])
def test_in_the_median_heuristic_a_weight_is_a_number_of_copies(name, rows):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    counts = rng.integers(0, 4, rows)
    X[counts > 1] /= 10
    X[counts == 0] *= 1e6
    weighted = median_length_scale(X, name, np.random.default_rng(0), 0.3 * counts)
    copies = median_length_scale(np.repeat(X, counts, axis=0), name, np.random.default_rng(0))
    assert weighted == pytest.approx(copies, rel=1e-8 if rows == 40 else 0.1)
