import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrf.support import exact_sum
from streamrf.support.errors import DataError
from streamrf.support.exact_sum import (
    SQUARE_ORIGIN,
    add_column_squares,
    add_columns,
    add_values,
    as_floats,
    carry,
    to_float,
    to_integer,
    zero_squares,
    zero_sums,
)

untimed = settings(deadline=None)  # the first call compiles
finite = st.floats(allow_nan=False, allow_infinity=False)
many = st.lists(finite, max_size=40)
LARGEST, SMALLEST = np.finfo(float).max, math.ulp(0.0)


def summed(values):
    limbs = zero_sums(1)
    add_values(limbs[0], np.array(values, dtype=np.float64))
    return limbs


def squared(values):
    limbs = zero_squares(1)
    add_column_squares(limbs, np.array(values, dtype=np.float64)[:, None])
    return limbs


def fractions_sum(values):
    return sum(map(Fraction, values), Fraction(0))


def rounded(fraction):
    try:
        return float(fraction)
    except OverflowError:
        return math.inf if fraction > 0 else -math.inf


@untimed
@given(many)
def test_sum_is_the_exact_sum_correctly_rounded(values):
    limbs = summed(values)[0]
    assert Fraction(to_integer(limbs), 2**1074) == fractions_sum(values)
    assert to_float(limbs) == rounded(fractions_sum(values))


@untimed
@given(st.lists(st.floats(-1e300, 1e300), max_size=40))
def test_sum_is_math_fsum(values):
    assert to_float(summed(values)[0]) == math.fsum(values)


@untimed
@given(many)
def test_squares_are_exact_where_float64_would_round_overflow_or_vanish(values):
    assert Fraction(to_integer(squared(values)[0]), 2**-SQUARE_ORIGIN) == sum(
        (Fraction(value) ** 2 for value in values), Fraction(0)
    )


@untimed
@given(many, st.randoms())
def test_order_does_not_change_a_bit(values, random):
    shuffled = random.sample(values, len(values))
    assert np.array_equal(summed(values), summed(shuffled))
    assert np.array_equal(squared(values), squared(shuffled))


@untimed
@given(many, many)
def test_merge_is_the_joint_sum_and_subtraction_undoes_it(left, right):
    merged = summed(left) + summed(right)
    carry(merged)
    assert np.array_equal(merged, summed(left + right))
    merged -= summed(right)
    carry(merged)
    assert np.array_equal(merged, summed(left))


@untimed
@given(many)
def test_equal_sums_have_equal_bits_however_they_were_reached(values):
    total = fractions_sum(values)
    if Fraction(rounded(total) if abs(rounded(total)) < math.inf else 0) == total:
        assert np.array_equal(summed(values), summed([float(total)]))
    assert np.array_equal(summed(values + [-value for value in values]), zero_sums(1))


@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("value", [LARGEST, -LARGEST, SMALLEST, -SMALLEST, 2.0**-1022, 1.0 - 2.0**-53])
def test_ends_of_the_range(value, count):
    values = np.full(count, value)
    assert to_integer(summed(values)[0]) == count * Fraction(value) * 2**1074
    assert to_integer(squared(values)[0]) == count * Fraction(value) ** 2 * 2**2148


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, -SMALLEST])
def test_limbs_have_room_for_counts_of_any_size(value):
    sums, squares = summed([value]), squared([value])
    for _ in range(62):  # doubling stands for 2^62 rows
        sums, squares = sums + sums, squares + squares
        carry(sums)
        carry(squares)
    assert to_integer(sums[0]) == 2**62 * Fraction(value) * 2**1074
    assert to_integer(squares[0]) == 2**62 * Fraction(value) ** 2 * 2**2148


def test_limbs_do_not_overflow_between_carries():
    """The largest deposit that a limb can get, as many times as a call makes before it carries."""
    for exponent in range(64):  # all the ways in which a mantissa can lie across limbs
        for mantissa in (2.0 - 2.0**-52, 2.0 - 2.0**-26, 1.0 + 2.0**-52):
            value = np.array([[mantissa * 2.0**exponent]])
            sums, squares = zero_sums(1), zero_squares(1)
            exact_sum._add_values(sums, value, False)
            exact_sum._add_values(squares, value, True)
            assert 0 < sums.max() < 2**63 // exact_sum._ROWS_PER_CALL
            assert 0 < squares.max() < 2**63 // exact_sum._ROWS_PER_CALL
            assert max(sums.max(), squares.max()) < 3 * 2**32


def test_more_rows_than_one_call_takes(monkeypatch):
    monkeypatch.setattr(exact_sum, "_ROWS_PER_CALL", 7)
    values = np.random.default_rng(0).normal(size=100)
    limbs = summed(values)
    monkeypatch.undo()
    assert np.array_equal(limbs, summed(values))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", ">f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_any_type_and_layout_has_the_sum_of_its_values(dtype, order):
    X = np.random.default_rng(1).integers(0, 2 if dtype == "?" else 100, size=(40, 6)).astype(dtype)
    X = X[::2, ::2] if order == "strided" else np.array(X, order=order)
    sums, squares = zero_sums(X.shape[1]), zero_squares(X.shape[1])
    add_columns(sums, X)
    add_column_squares(squares, X)
    assert [to_float(row) for row in sums] == X.astype(float).sum(axis=0).tolist()
    assert [to_integer(row) >> 2148 for row in squares] == (X.astype(int) ** 2).sum(axis=0).tolist()


def test_as_floats_copies_only_what_is_not_a_float():
    for dtype in (np.float32, np.float64):
        X = np.zeros((3, 2), dtype=dtype, order="F")
        assert as_floats(X) is X
    assert as_floats(np.array([-(2**53), 2**53])).tolist() == [-(2**53), 2**53]
    assert as_floats(np.array([2**31 - 1], dtype=np.int32)).tolist() == [2**31 - 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_that_are_not_finite_are_refused_and_leave_the_sums_alone(value, dtype):
    X = np.ones((5, 3), dtype=dtype)
    X[4, 1] = value
    sums, squares = zero_sums(3), zero_squares(3)
    for add, limbs in ((add_columns, sums), (add_column_squares, squares)):
        with pytest.raises(DataError, match="column 1 has NaN or infinite values"):
            add(limbs, X)
        assert not limbs.any()


def test_no_rows_add_nothing():
    sums = zero_sums(2)
    add_columns(sums, np.zeros((0, 2)))
    assert not sums.any()
    assert to_float(sums[0]) == 0.0
