"""Random binning against naive references: the same slots, the kernel it stands for, and exact sums."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrf.features.binning.map import BinningMap, GammaWidths, hash_multipliers, occupancy, width_law
from streamrf.features.binning.normal import BinningNormal, OccupiedBuckets, add_counts, add_product, add_values, scores
from streamrf.features.kernels import Gaussian, Laplacian
from streamrf.features.pipeline import map_from_parts
from streamrf.solvers.conjugate_gradients import ConjugateGradients, jacobi
from streamrf.support.errors import DataError, FileFormatError, InputError, MismatchError, NumericalError
from streamrf.support.threads import Threads

MASK64, MASK32 = 2**64 - 1, 2**32 - 1


@pytest.fixture(scope="module")
def threads():
    with Threads(1) as one:
        yield one


def rows_of(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


# -- a reference in Python integers


def splitmix64(state):
    z = state & MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK64
    return z ^ (z >> 31)


def naive_cell(x, shift, width):
    inverse = np.float32(1) / np.float32(width)
    where = np.floor((np.float32(x) - np.float32(shift)) * inverse)
    return int(min(max(where, -(2.0**30)), 2.0**30))


def naive_key(map, x, grid):
    low = high = 0
    for j in range(map.n_inputs):
        random = splitmix64(map.seed + 0x9E3779B97F4A7C15 * (grid * map.n_inputs + j + 1))
        cell = naive_cell(x[j], map.shifts[grid, j], map.widths[grid, j])
        low = (low + cell * ((random & MASK32) | 1)) & MASK32
        high = (high + cell * ((random >> 32) | 1)) & MASK32
    return (((high << 32) | low) * 0x9E3779B97F4A7C15) & MASK64


def dense(map, X):
    """Z as a matrix of zeros and ones, (n, P * slots)."""
    Z = np.zeros((len(X), map.grids, map.buckets))
    for p, row in enumerate(map.indices(X)):
        Z[np.arange(len(X)), p, row] = 1
    return Z.reshape(len(X), -1)


# -- slots


@pytest.mark.parametrize("seed", [0, 12345, 2**63 + 11])
def test_slots_are_those_of_the_naive_hash(seed):
    map = BinningMap.draw(Laplacian(0.3), 4, 7, 11, seed, metric=np.array([1.0, 0.01, 50.0, np.inf]))
    X = np.concatenate([rows_of(50, 4), [[0, 0, 0, 0], [1e20, -1e20, 1e9, 5], [-3.5, 2, -1e-30, 1]]]).astype(np.float32)
    keys = [[naive_key(map, x, p) for x in X] for p in range(7)]
    assert map.keys(X).tolist() == keys
    assert map.indices(X).tolist() == [[key >> (64 - 11) for key in row] for row in keys]


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 1300), max_size=4), count=st.integers(1, 3))
def test_a_row_has_the_same_slots_in_any_block_on_any_threads(cuts, count):
    map = BinningMap.draw(GammaWidths(), 3, 5, 9, 4)
    X = rows_of(1300, 3)
    edges = [0, *sorted(cuts), 1300]
    with Threads(count) as some:
        parts = [map.indices(X[a:b], threads=some) for a, b in pairwise(edges)]
    assert (np.concatenate(parts, axis=1) == map.indices(X)).all()


def test_rows_of_any_layout_and_type_have_the_same_slots():
    map = BinningMap.draw(Laplacian(), 3, 5, 9, 4)
    X = rows_of(600, 3)
    assert (map.indices(np.asfortranarray(X)) == map.indices(X)).all()
    assert (map.indices(X.astype(np.float64)) == map.indices(X)).all()


def test_columns_within_one_cell_can_be_left_out_without_changing_which_rows_share_bins():
    X = rows_of(500, 6)
    X[:, 3:] = X[:, 3:] > 0
    bounds = X.min(axis=0), X.max(axis=0)
    whole = BinningMap.draw(Laplacian(2.0), 6, 40, 20, 1)
    lean = BinningMap.draw(Laplacian(2.0), 6, 40, 20, 1, bounds=bounds)
    assert lean.active.sum() < whole.active.sum()
    for before, after in zip(whole.keys(X), lean.keys(X), strict=True):
        pairs = set(zip(before.tolist(), after.tolist(), strict=True))
        assert len(pairs) == len(np.unique(before)) == len(np.unique(after))


def test_a_metric_multiplies_the_widths_and_infinity_ignores_a_column():
    plain = BinningMap.draw(Laplacian(), 3, 8, 10, 5)
    scaled = BinningMap.draw(Laplacian(), 3, 8, 10, 5, metric=np.array([2.0, 0.5, np.inf]))
    assert (scaled.widths[:, :2] == plain.widths[:, :2] * np.float32([2.0, 0.5])).all()
    X = rows_of(100, 3)
    moved = X.copy()
    moved[:, 2] += 100
    assert (scaled.indices(X) == scaled.indices(moved)).all()
    per_grid = np.where(np.arange(8)[:, None] < 4, 1.0, np.inf) * np.ones(3)
    assert BinningMap.draw(Laplacian(), 3, 8, 10, 5, metric=per_grid).active.tolist() == [3] * 4 + [0] * 4


def test_hash_multipliers_are_odd_and_different():
    low, high = hash_multipliers(3, 20, 30)
    assert (low % 2 == 1).all()
    assert (high % 2 == 1).all()
    assert len(np.unique(np.stack([low, high]))) == 1200


def test_slots_are_used_evenly_and_cells_are_told_apart():
    X = np.random.default_rng(0).integers(0, 2, (4000, 40)).astype(np.float32)  # the hardest cells: only 0 and 1
    map = BinningMap(np.ones((4, 40), np.float32), np.zeros((4, 40), np.float32), 10, 9)
    report = occupancy(map, X)
    distinct = len(np.unique(X, axis=0))
    assert report.cells.tolist() == [distinct] * 4
    counts = np.stack([np.bincount(row, minlength=1024) for row in map.indices(X)])
    chi_square = ((counts - 4000 / 1024) ** 2 / (4000 / 1024)).sum(axis=1)
    assert (chi_square < 1023 + 6 * np.sqrt(2 * 1023)).all()


def test_occupancy_counts_bins_and_slots():
    X = rows_of(300, 2)
    map = BinningMap.draw(Laplacian(0.1), 2, 3, 6, 0)
    report = occupancy(map, X)
    cells = [
        {tuple(naive_cell(x[j], map.shifts[p, j], map.widths[p, j]) for j in range(2)) for x in X} for p in range(3)
    ]
    assert report.cells.tolist() == [len(each) for each in cells]
    assert report.occupied.tolist() == [len(set(row.tolist())) for row in map.indices(X)]
    assert report.colliding == 1 - report.occupied.sum() / report.cells.sum()
    assert "64 buckets" in report.describe()


# -- the kernel


@pytest.mark.parametrize("kernel", [Laplacian(1.5), GammaWidths(2.0, 1.5), GammaWidths(4.0, 1.0)])
def test_two_rows_share_bins_as_often_as_the_kernel_says(kernel):
    X, P = rows_of(12, 3), 20_000
    keys = BinningMap.draw(kernel, 3, P, 20, 0).keys(X)
    shared = (keys[:, :, None] == keys[:, None, :]).mean(axis=0)
    exact = kernel(X, X)
    error, deviation = (
        (shared - exact)[np.triu_indices(12, 1)],
        np.sqrt(exact * (1 - exact) / P)[np.triu_indices(12, 1)],
    )
    assert np.abs(error / deviation).max() < 4.5
    assert abs(error.mean()) < 3 * deviation.mean()
    assert (np.diag(shared) == 1).all()


def test_the_kernel_error_shrinks_with_the_root_of_the_grids():
    X, kernel = rows_of(30, 4), Laplacian(3.0)
    exact = kernel(X, X)

    def mean_error(P, seed):
        keys = BinningMap.draw(kernel, 4, P, 20, seed).keys(X)
        return np.abs((keys[:, :, None] == keys[:, None, :]).mean(axis=0) - exact).mean()

    few, many = (np.mean([mean_error(P, seed) for seed in range(10)]) for P in (50, 1250))
    assert 3.5 < few / many < 7.5  # the root of 25 is 5


def test_shape_two_is_the_laplacian_kernel():
    U, X = np.random.default_rng(0).random((20, 3)), rows_of(5, 3)
    np.testing.assert_allclose(GammaWidths(2.0, 0.7).bin_widths(U), Laplacian(0.7).bin_widths(U), rtol=1e-12)
    np.testing.assert_allclose(GammaWidths(2.0, 0.7)(X, X), Laplacian(0.7)(X, X), rtol=1e-9)


# -- sums


def integers(rng, shape):
    return rng.integers(-1000, 1000, shape)


def test_sums_are_those_of_the_dense_matrix(threads):
    rng, X = np.random.default_rng(1), rows_of(400, 3)
    map = BinningMap.draw(Laplacian(0.5), 3, 6, 5, 0)
    Z, indices, shape = dense(map, X), map.indices(X), (6, 32)
    table = integers(rng, (3, *shape)).astype(np.int32)
    expected = table.reshape(3, -1) @ Z.T
    assert (scores(indices, table, threads) == expected).all()
    totals = np.zeros((3, *shape), np.int64)
    add_product(indices, table, totals, threads)
    assert (totals.reshape(3, -1) == expected @ Z).all()
    counts, targets = np.zeros(shape, np.int64), np.zeros((3, *shape), np.int64)
    add_counts(indices, counts, threads)
    assert (counts.ravel() == Z.sum(axis=0)).all()
    Y = integers(rng, (3, 400))
    add_values(indices, Y, targets, threads)
    assert (targets.reshape(3, -1) == Y @ Z).all()


def normal_of(map, X, cuts, threads):
    edges = [0, *cuts, len(X)]
    blocks = [map.indices(X[a:b]) for a, b in pairwise(edges)]
    return BinningNormal(blocks, map.buckets, threads)


def test_the_product_is_exact_for_rounded_directions(threads):
    X = rows_of(300, 3)
    map = BinningMap.draw(GammaWidths(4.0, 0.5), 3, 8, 6, 0)
    normal = normal_of(map, X, [70, 71], threads)
    Z = dense(map, X)[:, normal.occupied.positions]
    assert (normal.diagonal == Z.sum(axis=0)).all()
    V = normal.rounded(np.random.default_rng(0).standard_normal((2, Z.shape[1])) * [[1.0], [1e-7]])
    assert (normal.product(V) == V @ Z.T @ Z).all()  # float64 is exact here too: the values are few bits apart
    Y = integers(np.random.default_rng(2), (2, 300))
    assert (normal.targets(Y) == Y @ Z).all()


@settings(max_examples=20, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 200), max_size=3).map(sorted),
    order=st.permutations(range(200)),
    count=st.integers(1, 3),
)
def test_products_have_the_same_bits_for_any_blocks_order_and_threads(cuts, order, count):
    X = rows_of(200, 2)
    map = BinningMap.draw(Laplacian(0.5), 2, 4, 5, 0)
    with Threads(1) as one, Threads(count) as some:
        whole, parts = normal_of(map, X, [], one), normal_of(map, X[list(order)], cuts, some)
        V = whole.rounded(np.random.default_rng(0).standard_normal((2, len(whole.diagonal))))
        assert (whole.product(V) == parts.product(V)).all()


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 1000),
    grids=st.integers(1, 40),
    size=st.floats(1e-200, 1e200),
    tie=st.sampled_from([0.5, 1.0, None]),
)
def test_no_row_can_overflow_and_rounding_is_stable(seed, grids, size, tie):
    rng = np.random.default_rng(seed)
    occupied = OccupiedBuckets.of(rng.integers(0, 2, (grids, 4)) + np.eye(1, 4, dtype=int))
    V = rng.standard_normal((2, len(occupied.positions))) * size
    V = V if tie is None else np.full_like(V, tie * size)
    V[1] = 0
    once = occupied.rounded(V)
    assert (occupied.rounded(once) == once).all()
    table, scale = occupied.integers(once)
    assert np.abs(table.astype(np.int64)).max(axis=2).sum(axis=1).max() < 2**31
    assert (occupied.compress(table) / scale == once).all()
    assert np.abs(once - V).max() <= grids * 2.0**-29 * np.abs(V).max()


def test_numbers_that_are_not_finite_are_refused(threads):
    occupied = OccupiedBuckets.of(np.ones((2, 2), int))
    with pytest.raises(NumericalError, match="diverged"):
        occupied.exponents(np.array([[1.0, np.nan, 0.0, 0.0]]))


def test_conjugate_gradients_solve_ridge_regression_on_the_bins(threads):
    rng, X = np.random.default_rng(0), rows_of(300, 2)
    map = BinningMap.draw(Laplacian(1.0), 2, 10, 6, 0)
    normal = normal_of(map, X, [100], threads)
    Z = dense(map, X)[:, normal.occupied.positions]
    Y = integers(rng, (2, 300))
    cg = ConjugateGradients.begin(normal, normal.targets(Y), 2.0, jacobi(normal.diagonal, 2.0))
    expected = np.linalg.solve(Z.T @ Z + 2.0 * np.eye(Z.shape[1]), Z.T @ Y.T).T
    np.testing.assert_allclose(cg.run(200, tolerance=1e-12), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


# -- probing


def test_sensitivity_is_the_change_of_scores_when_one_column_moves(threads):
    rng, X = np.random.default_rng(3), rows_of(80, 4)
    map = BinningMap.draw(Laplacian(1.0), 4, 6, 8, 0, metric=np.array([1, 1, np.inf, 0.1]))
    table = rng.standard_normal((2, 6, 256)).astype(np.float32)
    moves = X + rng.standard_normal(X.shape).astype(np.float32)
    found = map.sensitivity(X, table, moves)
    for j in range(4):
        moved = X.copy()
        moved[:, j] = moves[:, j]
        change = scores(map.indices(moved), table, threads) - scores(map.indices(X), table, threads)
        np.testing.assert_allclose(found[j], (change**2).sum(axis=0).mean(), rtol=1e-5)
    assert found[2] == 0


# -- what is refused


def test_what_cannot_be_is_refused(threads):
    with pytest.raises(InputError, match="at least one grid"):
        BinningMap.draw(Laplacian(), 3, 0, 8, 0)
    with pytest.raises(InputError, match=r"2\^31"):
        BinningMap.draw(Laplacian(), 3, 2, 31, 0)
    with pytest.raises(InputError, match="positive"):
        BinningMap(np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32), 4, 0)
    with pytest.raises(MismatchError, match="shifts"):
        BinningMap(np.ones((1, 2), np.float32), np.zeros((1, 1), np.float32), 4, 0)
    with pytest.raises(InputError, match="binning"):
        BinningMap.draw(Gaussian(), 3, 2, 8, 0)
    map = BinningMap.draw(Laplacian(), 3, 2, 8, 0)
    with pytest.raises(MismatchError, match="3 columns"):
        map.indices(rows_of(5, 4))
    with pytest.raises(MismatchError, match="5 rows"):
        map.indices(rows_of(5, 3), out=np.empty((5, 2), np.uint32))
    with pytest.raises(DataError, match="at least one row"):
        BinningNormal([], 8, threads)
    with pytest.raises(MismatchError, match="3 targets"):
        BinningNormal([map.indices(rows_of(5, 3))], map.buckets, threads).targets(np.zeros((1, 3), np.int64))


# -- as a feature map of a model


def test_features_are_zeros_and_a_one_for_each_grid(threads):
    map = BinningMap.draw(GammaWidths(), 3, 5, 6, 2)
    X = rows_of(40, 3)
    assert (map.dense(X, threads) == dense(map, X) / np.sqrt(5)).all()
    assert map.n_features == dense(map, X).shape[1]


def test_scores_are_those_of_the_dense_features(threads):
    map = BinningMap.draw(GammaWidths(), 3, 5, 6, 2)
    X, rng = rows_of(300, 3), np.random.default_rng(1)
    weights = rng.standard_normal((map.n_features, 2)).astype(np.float32)
    found = map.scorer(weights, np.array([1.0, -2.0])).scores(X, threads)
    np.testing.assert_allclose(found, dense(map, X) @ weights + [1.0, -2.0], rtol=1e-12)


def test_a_map_survives_its_parts_and_a_pickle():
    map = BinningMap.draw(GammaWidths(), 3, 5, 6, 2**40 + 1, metric=np.array([1.0, np.inf, 2.0]))
    X = rows_of(50, 3)
    for again in (map_from_parts(*map.to_parts()), pickle.loads(pickle.dumps(map))):
        assert (again.indices(X) == map.indices(X)).all()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bits", lambda parts: parts[0].update(bits=31)),
        ("bits", lambda parts: parts[0].update(bits=True)),
        ("seed", lambda parts: parts[0].update(seed="7")),
        ("float32", lambda parts: parts[1].update({"binning.widths": np.ones((5, 3))})),
        ("shape", lambda parts: parts[1].update({"binning.shifts": np.zeros((4, 3), np.float32)})),
        ("positive", lambda parts: parts[1]["binning.widths"].fill(-1)),
        ("finite", lambda parts: parts[1]["binning.shifts"].fill(np.inf)),
        ("finite", lambda parts: parts[1]["binning.widths"].fill(np.nan)),
        ("widths", lambda parts: parts[1].update({"binning.widths": np.zeros((0, 3), np.float32)})),
    ],
)
def test_damaged_parts_are_refused(name, change):
    parts = BinningMap.draw(GammaWidths(), 3, 5, 6, 2).to_parts()
    change(parts)
    with pytest.raises(FileFormatError, match=name if name != "bits" else "grids are damaged"):
        map_from_parts(*parts)


def test_laws_of_widths_have_names():
    assert width_law("laplacian") == width_law("bins:2") == GammaWidths(2.0)
    assert width_law("bins:4.5") == GammaWidths(4.5)
    for name, reason in {
        "bins:": "must be above 1", "bins:1": "above 1", "bins:x": "above 1", "bins:nan": "above 1",
        "gaussian": "negative near 0", "matern32": "not a product", "nonsense": "no kernel",
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=reason):
            width_law(name)
