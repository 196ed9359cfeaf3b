import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from statistics_conformance import StatisticConformance, make_blocks

from streamrf.data.source import Block
from streamrf.statistics import moments as moments_module
from streamrf.statistics.moments import Moments
from streamrf.support.errors import DataError
from streamrf.support.threads import ALONE, Threads

finite = st.floats(allow_nan=False, allow_infinity=False)
tables = hnp.arrays(np.float64, st.tuples(st.integers(1, 8), st.just(2)), elements=finite)


def moments(X, threads=1):
    statistic = Moments(X.shape[1])
    state = statistic.zero()
    with Threads(threads) as pool:
        statistic.update(state, Block(X, None, np.arange(len(X))), pool)
    return state


class TestMomentsConformance(StatisticConformance):
    @pytest.fixture(params=[np.float32, np.float64, np.int16, np.bool_])
    def blocks(self, request):
        rng = np.random.default_rng(5)
        X = (rng.normal(size=(300, 3)) * 10.0 ** rng.integers(-3, 4, size=(300, 1))).astype(request.param)
        X[::7] = 0
        if request.param != np.bool_:
            X[1::7] = -X[::7][: len(X[1::7])]  # zeros of both signs
        return make_blocks(X, None, [40, 40, 141])

    @pytest.fixture
    def statistic(self, monkeypatch):
        monkeypatch.setattr(moments_module, "_ROWS_PER_TASK", 20)  # so that these small blocks are shared by threads
        return Moments(3)


def square_root(fraction):
    """To 100 bits more than a float64 has."""
    p, q = fraction.numerator, fraction.denominator
    return Fraction(math.isqrt(p * q << 400), q << 200)


@settings(deadline=None)
@given(tables)
def test_mean_and_variance_are_the_exact_ones_rounded_once(X):
    state = moments(X)
    for j, column in enumerate(X.T):
        values = [Fraction(value) for value in column]
        mean = sum(values) / len(values)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        assert state.mean[j] == float(mean)
        assert state.variance[j] == (
            float(variance) if variance < 2**1023 else np.clip(state.variance[j], 2.0**1023, None)
        )
        assert state.std[j] == float(square_root(variance))


def test_no_cancellation_far_from_zero():
    X = 1e9 + np.array([[0.0], [1.0], [2.0]])
    assert moments(X).variance[0] == 2 / 3
    assert moments(X.astype(np.float64) * 1e100).std[0] == pytest.approx(math.sqrt(2 / 3) * 1e100, rel=1e-6)


@pytest.mark.parametrize("size", [1e-200, 5e-324, 1e200])
def test_columns_of_any_magnitude_have_a_spread(size):
    state = moments(np.array([[-size], [size]]))
    assert state.mean[0] == 0.0
    assert state.std[0] == size


@pytest.mark.parametrize("value", [0.1, 1e300, -7.3e-310])
def test_constant_column_has_no_variance_at_all(value):
    state = moments(np.full((12345, 1), value))
    assert state.mean[0] == value
    assert state.variance[0] == state.std[0] == 0.0


def test_moments_agree_with_numpy_on_ordinary_data():
    X = np.random.default_rng(0).normal(3.0, 2.0, size=(20_000, 5)).astype(np.float32)
    state = moments(X, threads=2)
    wide = X.astype(np.float64)
    assert state.rows == 20_000
    assert np.allclose(state.mean, wide.mean(axis=0), rtol=1e-13)
    assert np.allclose(state.variance, wide.var(axis=0), rtol=1e-13)
    assert np.allclose(state.std, wide.std(axis=0), rtol=1e-13)
    assert np.array_equal(state.minimum, wide.min(axis=0))
    assert np.array_equal(state.maximum, wide.max(axis=0))


def test_binary_means_zeros_and_ones_alone():
    X = np.array([[0, 0, 1, 0, -1, 2], [1, 0, 1, 0.5, 0, 0], [1, 0, 1, 1, 1, 1]])
    assert moments(X).binary.tolist() == [True, True, True, False, False, False]


def test_range_does_not_depend_on_the_order_of_signed_zeros():
    for X in ([[-0.0], [0.0]], [[0.0], [-0.0]], [[-0.0]]):
        state = moments(np.array(X))
        assert math.copysign(1.0, state.minimum[0]) == math.copysign(1.0, state.maximum[0]) == 1.0


def test_range_stays_a_bound_after_subtraction():
    state = moments(np.array([[1.0], [9.0]]))
    state -= moments(np.array([[9.0]]))
    assert state.rows == 1
    assert state.mean[0] == 1.0
    assert state.variance[0] == 0.0
    assert state.maximum[0] == 9.0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_block_with_nan_is_refused_and_leaves_the_state_alone(threads):
    X = np.ones((20_000, 2))
    X[-1, 1] = np.nan
    statistic = Moments(2)
    state = statistic.zero()
    with Threads(threads) as pool, pytest.raises(DataError, match="column 1 has NaN"):
        statistic.update(state, Block(X, None, np.arange(len(X))), pool)
    assert state.digest() == statistic.zero().digest()
    assert state.binary.all()


def test_moments_of_no_rows_are_refused():
    with pytest.raises(DataError, match="at least 1 row; there are 0"):
        Moments(2).zero().mean  # noqa: B018


def test_rows_that_weigh_nothing_are_not_there():
    X, weights = np.array([[1.0], [5.0], [1e9], [-1e9]]), np.array([1.0, 2.0, 0.0, 0.0])
    state = Moments(1).zero()
    Moments(1).update(state, Block(X, None, np.arange(4), weights), ALONE)
    assert (state.minimum[0], state.maximum[0], state.rows) == (1.0, 5.0, 2)
