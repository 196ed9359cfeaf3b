"""Gradient passes against dense products; the laws of exact sums hold for them too."""

from itertools import product

import numpy as np
import pytest
from statistics_conformance import StatisticConformance, assert_same, make_blocks

from streamrf.data.source import Block
from streamrf.data.split import Split, chosen_rows
from streamrf.features.base import Scorer
from streamrf.features.kernels import make_kernel
from streamrf.features.pipeline import build_fourier
from streamrf.features.precision import LIMITS, make_precision
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.statistics.gradient import Gradient
from streamrf.statistics.gradient_kernels import FEATURES, MOST_ROWS, PULL_BITS, add_whole_pulls
from streamrf.statistics.holdout import Holdout
from streamrf.statistics.losses import ScorePull, TargetPull
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.threads import ALONE, Threads

D, d, ROWS = 150, 4, 700


def table(rows=ROWS, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, d)).astype(np.float32)
    return X, np.sin(X[:, 0]) + 3 + 0.1 * rng.standard_normal(rows)


def make_gradient(bits="8", outputs=2, pull=None, **settings):
    X, y = table()
    coding = TargetCoding.regression(y.min()[None], y.max()[None])
    kernel, precision = make_kernel("gaussian", length_scale=2.0), make_precision(bits)
    map = build_fourier("mc", kernel, D, d, form="phase", precision=precision, seed=1)
    rng = np.random.default_rng(2)
    V = rng.standard_normal((D, outputs)) * map.amplitudes[:, None]
    pull = pull or ScorePull(outputs)
    if isinstance(pull, TargetPull):
        V = V[:, :0]
    return Gradient(fit_scaling("standard", X), map, coding, pull, V, np.zeros(V.shape[1]), 10**6, **settings)


def features(gradient, X):
    return gradient.map.dense(gradient.scaling.transform(X, gradient.map.precision.inputs), ALONE) / (
        gradient.map.amplitudes
    )


def total(gradient, block, threads=1):
    state = gradient.zero()
    with Threads(threads) as pool:
        gradient.update(state, block, pool)
    return state


class TestLaws(StatisticConformance):
    @pytest.fixture(params=["7", "8", "12"])
    def statistic(self, request):
        return make_gradient(request.param)

    @pytest.fixture
    def blocks(self):
        return make_blocks(*table(), cuts=[0, 101, 102, 500])


class TestLawsOfTargets(StatisticConformance):
    @pytest.fixture
    def statistic(self):
        gradient = make_gradient()
        return make_gradient(pull=TargetPull(gradient.coding), split=Split(choose=0.3, seed=5))

    @pytest.fixture
    def blocks(self):
        return make_blocks(*table(), cuts=[0, 300, 411])


class TestLawsOfTheFirstPass(StatisticConformance):
    @pytest.fixture
    def statistic(self):
        gradient = make_gradient(pull=TargetPull(make_gradient().coding), split=Split(choose=0.2, seed=5))
        return Holdout(gradient, gradient.split, (0, 350), 0.3)

    @pytest.fixture
    def blocks(self):
        return make_blocks(*table(), cuts=[0, 300, 411])

    @staticmethod
    def kept_rows(statistic, blocks):
        state = StatisticConformance.total(statistic, blocks)
        return state.holdout.table().index, state.sample.table().index

    def test_no_row_is_in_both_samples(self, statistic, blocks):
        held, sampled = self.kept_rows(statistic, blocks)
        assert len(held) > 0.1 * ROWS
        assert len(sampled) > 0.15 * ROWS
        assert not set(held) & set(sampled)

    def test_damaged_arrays_are_refused(self, statistic, blocks):
        arrays = self.total(statistic, blocks).arrays()
        for name in ("gradient.totals", "dropped", "marks"):
            with pytest.raises(FileFormatError):
                statistic.load({key: value for key, value in arrays.items() if key != name})

    def test_subtraction_may_come_before_addition(self, statistic, blocks):
        """Not of kept rows: what was never in cannot be taken away."""
        state = statistic.zero()
        with pytest.raises(MismatchError):
            state -= self.total(statistic, blocks)

    def test_size_is_known_beforehand(self, statistic, blocks):
        """Of the sums: how many rows are kept is a matter of their numbers."""
        sums = self.total(statistic, blocks).sums.arrays()
        assert abs(statistic.nbytes() - sum(array.nbytes for array in sums.values())) <= 64


@pytest.mark.parametrize(("bits", "tolerance"), [("8", 1e-6), ("12", 1e-6), ("float32", 1e-6), ("float64", 1e-12)])
def test_the_pass_is_the_dense_product(bits, tolerance):
    gradient = make_gradient(bits, outputs=5)
    X, y = table()
    Z = features(gradient, X)
    scores = Z @ gradient.coefficients
    sums, pulls = gradient.sums(total(gradient, Block(X, y, np.arange(ROWS)), threads=2))
    expected = (Z.T @ scores).T
    np.testing.assert_allclose(sums, expected, atol=tolerance * np.abs(expected).max())
    np.testing.assert_allclose(pulls, scores.sum(axis=0), atol=tolerance * ROWS * np.abs(scores).max())


def test_targets_pull_the_right_hand_side():
    gradient = make_gradient(pull=TargetPull(make_gradient().coding))
    X, y = table()
    Z, offset = features(gradient, X), gradient.coding.offset[0]
    state = total(gradient, Block(X, y, np.arange(ROWS)))
    sums, pulls = gradient.sums(state)
    np.testing.assert_array_equal(sums[0], Z.sum(axis=0))
    np.testing.assert_allclose(sums[1], Z.T @ (y - offset), rtol=1e-7, atol=1e-4)
    assert pulls[0] == ROWS
    losses, weight = gradient.loss_sums(state)
    assert losses[0] == pytest.approx(((y - offset) ** 2).sum(), rel=1e-12)
    assert weight == ROWS


def test_held_out_rows_pull_at_nothing():
    gradient, (X, y) = make_gradient(split=Split(choose=0.25, seed=3)), table()
    index = np.arange(ROWS)
    kept = ~chosen_rows(index, 0.25, 3)
    alone = make_gradient()
    assert 0 < kept.sum() < ROWS
    assert_same(total(gradient, Block(X, y, index)), total(alone, Block(X[kept], y[kept], index[kept])))


@pytest.mark.parametrize("bits", [7, 8, 12])
@pytest.mark.parametrize("rows", [1, 2, MOST_ROWS, 2 * MOST_ROWS + 3])
def test_the_largest_pulls_at_the_largest_features_do_not_overflow(bits, rows):
    """All pull the same way, so that nothing cancels; widths that no tile divides."""
    dtype = np.int16 if bits == 12 else np.int8
    for sign, pull in product((-1, 1), (2**PULL_BITS, 2**PULL_BITS - 1, 2**15, 2**15 - 1, 2**10, -(2**PULL_BITS))):
        Z = np.full((rows, FEATURES + 5), sign * LIMITS[bits], dtype)
        sums = np.ones((1, Z.shape[1]), np.int64)
        add_whole_pulls(Z, np.full((rows, 1), pull), sums)
        assert (sums == 1 + sign * LIMITS[bits] * pull * rows).all()


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
@pytest.mark.parametrize("outputs", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rows", [1, 2, 65, 64])
def test_whole_pulls_are_summed_exactly(dtype, outputs, rows):
    rng = np.random.default_rng(rows)
    limit = 2047 if dtype == np.int16 else 127
    Z = rng.integers(-limit, limit + 1, (rows + 2, 3 * FEATURES + 16)).astype(dtype)
    C = rng.integers(-(2**PULL_BITS), 2**PULL_BITS + 1, (rows, outputs))
    sums = rng.integers(-5, 6, (outputs, Z.shape[1]))
    expected = sums + C.T @ Z[:rows].astype(np.int64)
    add_whole_pulls(Z, C, sums)
    assert np.array_equal(sums, expected)


@pytest.mark.parametrize("bits", ["8", "12", "float32"])
def test_scores_of_targets_far_from_zero_keep_their_differences(bits):
    gradient, (X, _) = make_gradient(bits), table()
    X = gradient.scaling.transform(X, gradient.map.precision.inputs)
    near, far = (
        Scorer(gradient.map, gradient.coefficients, np.full(2, centre)).scores(X, ALONE) for centre in (0.0, 1.7e9)
    )
    assert np.abs(far - 1.7e9 - near).max() < 1e-6


def test_no_pull_is_beyond_its_bound():
    gradient, (X, _) = make_gradient(outputs=3), table()
    scores = features(gradient, X) @ gradient.coefficients
    assert (np.abs(scores) <= gradient.reach).all()


def test_class_weights_count_rows_as_often():
    X, y = table()
    labels = (y > 3).astype(int)
    coding = TargetCoding.classification((0, 1))
    plain = make_gradient()
    plain.coding = coding
    heavy = make_gradient(class_weights=np.array([1.0, 3.0]), heaviest=3.0)
    heavy.coding = coding
    repeated = np.concatenate([np.arange(ROWS), np.flatnonzero(labels), np.flatnonzero(labels)])
    expected, _ = plain.sums(total(plain, Block(X[repeated], labels[repeated], repeated)))
    found, _ = heavy.sums(total(heavy, Block(X, labels, np.arange(ROWS))))
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())
