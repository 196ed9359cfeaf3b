"""Weighted quantiles are those of rows that come so many times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrf.support.quantiles import median, quantiles, robust_deviation

LEVELS = [0.0, 0.005, 0.25, 1 / 3, 0.5, 0.75, 1.0]


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), min_size=1), st.sampled_from([1.0, 0.37, 1e6]))
def test_a_weight_is_a_number_of_copies(rows, unit):
    values, counts = np.array(rows, float).T
    if not counts.any():
        return
    copies = np.repeat(values, counts.astype(int))
    assert quantiles(values, LEVELS, unit * counts) == pytest.approx(quantiles(copies, LEVELS))
    assert median(values[:, None], unit * counts)[0] == np.median(copies)
    assert robust_deviation(values[:, None], counts)[0] == pytest.approx(
        robust_deviation(copies[:, None])[0], abs=1e-10
    )
