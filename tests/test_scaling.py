import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrf.features.scaling import SCALINGS, Scaling, _log1p
from streamrf.features.scaling_fits import EIGENVALUE_FLOOR, KNOTS, fit_scaling, heavy_tailed
from streamrf.statistics.moments import moments_of
from streamrf.support.errors import DataError, FileFormatError, InputError, MismatchError

CHANGING = tuple(kind for kind in SCALINGS if kind != "none")


def table(n=700, seed=3):
    """Columns: normal, heavy-tailed, ties, heavy-tailed of both signs, binary, constant."""
    rng = np.random.default_rng(seed)
    return np.column_stack(
        [
            rng.normal(5.0, 2.0, n),
            rng.lognormal(3.0, 2.0, n),
            rng.integers(0, 4, n),
            rng.standard_t(1.5, n),
            rng.integers(0, 2, n),
            np.full(n, 7.3),
        ]
    ).astype(np.float32)


@pytest.fixture
def X():
    return table()


# -- the bits


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", SCALINGS)
def test_a_row_has_the_same_bits_in_any_block_type_and_layout(kind, dtype, X):
    scaling = fit_scaling(kind, X)
    whole = scaling.transform(X, dtype)
    assert whole.dtype == dtype
    assert whole.flags.c_contiguous
    for size in (1, 3, 127, 129):
        blocks = [scaling.transform(X[start : start + size], dtype) for start in range(0, len(X), size)]
        assert np.concatenate(blocks).tobytes() == whole.tobytes()
    wide = np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)[::2, ::2]
    for same in (np.asfortranarray(X), X.astype(np.float64), X.astype(">f4"), wide, X[::-1]):
        expected = whole[::-1] if same.base is X else whole
        assert np.array_equal(scaling.transform(same, dtype), expected)
    assert scaling.transform(X[:0], dtype).shape == (0, 6)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.uint64, np.float16, np.bool_])
@pytest.mark.parametrize("kind", SCALINGS)
def test_integers_booleans_and_half_floats_scale_as_their_values(kind, dtype):
    X = np.random.default_rng(0).integers(0, 2 if dtype == np.bool_ else 50, size=(300, 3)).astype(dtype)
    scaling = fit_scaling(kind, X, binary="scale")
    assert np.array_equal(scaling.transform(X), scaling.transform(X.astype(np.float64)))
    assert np.array_equal(scaling.factor, fit_scaling(kind, X.astype(np.float64), binary="scale").factor)


def test_read_only_rows_are_fine(X):
    X.flags.writeable = False
    assert np.isfinite(fit_scaling("standard", X).transform(X)).all()


def pinned_scaling(kind="pca"):
    """All curves at once, with numbers that no library computed."""
    d = 6
    rotation = ((np.arange(d * d).reshape(d, d) * 37) % 29 - 14) / 8.0
    return Scaling(
        kind, "keep", centre=np.arange(d) / 3.0, factor=1.0 / (np.arange(d) + 0.7),
        low=np.array([-2.0, -9.0, -1e9, -1.5, -9.0, -1e9]), high=np.array([9.0, 1.0, 1e9, 2.0, 9.0, 1e9]),
        log_columns=np.array([1, 3]), log_rates=np.array([0.37, 1.9]),
        rank_columns=np.array([2, 5]), rank_offsets=np.array([0, 4, 9]),
        knots=np.array([-1.0, 0.1, 2.5, 3.0, 0.0, 1.0, 2.0, 4.0, 8.0]), levels=np.arange(9) / 7.0,
        rotation=rotation if kind == "pca" else np.zeros((0, 0)),
    )  # fmt: skip


def naive_columns(s, row):
    """One row in Python's own arithmetic, which no compiler fuses, reorders or hands to a library."""
    row = [min(max(x, low), high) for x, low, high in zip(row, s.low.tolist(), s.high.tolist(), strict=True)]
    out = [(x - c) * f for x, c, f in zip(row, s.centre.tolist(), s.factor.tolist(), strict=True)]
    for j, rate in zip(s.log_columns, s.log_rates.tolist(), strict=True):
        log = math.copysign(float(_log1p.py_func(abs(row[j]) * rate)), row[j])
        out[j] = (log - float(s.centre[j])) * float(s.factor[j])
    for k, j in enumerate(s.rank_columns):
        curve = slice(s.rank_offsets[k], s.rank_offsets[k + 1])
        out[j] = naive_level(row[j], s.knots[curve].tolist(), s.levels[curve].tolist())
    return out


def naive_level(x, knots, levels):
    k = max([k for k in range(len(knots) - 1) if knots[k] <= x], default=0)
    share = min(max((x - knots[k]) / (knots[k + 1] - knots[k]), 0.0), 1.0)
    return levels[k] + share * (levels[k + 1] - levels[k])


def naive_rotation(rotation, row):
    out = []
    for column in rotation.T.tolist():
        total = 0.0
        for z, weight in zip(row, column, strict=True):
            total += z * weight
        out.append(total)
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["standard", "pca"])
def test_bits_are_those_of_plain_arithmetic(kind, dtype):
    X = ((np.arange(1200).reshape(200, 6) * 7919) % 1009 - 400) / 64.0
    scaling = pinned_scaling(kind)
    rows = [naive_columns(scaling, row) for row in X.tolist()]
    if kind == "pca":
        rows = [naive_rotation(scaling.rotation, row) for row in rows]
    assert np.array_equal(scaling.transform(X, dtype), np.array(rows).astype(dtype))


@settings(deadline=None)
@given(st.floats(0.0, 1e300))
def test_logarithm_is_accurate(v):
    assert _log1p(v) == pytest.approx(math.log1p(v), rel=2e-15, abs=5e-324)


# -- what each kind does


def test_none_changes_nothing(X):
    assert np.array_equal(fit_scaling("none", X).transform(X), X)
    assert np.array_equal(fit_scaling("none", X).transform(X, np.float64), X.astype(np.float64))


@pytest.mark.parametrize("kind", ["none", *CHANGING])
def test_what_no_float32_holds_stays_finite(kind, X):
    far = np.repeat(X[:4].astype(np.float64), 2, axis=0)
    far[:, 0] = [1e39, -1e39, 1e300, -1e300, np.finfo(float).max, -np.finfo(float).max, 1e30, 0.0]
    scaled = fit_scaling(kind, X).transform(far)
    assert scaled.dtype == np.float32
    assert np.isfinite(scaled).all()


@pytest.mark.parametrize("kind", CHANGING)
def test_constant_columns_become_zero_and_binary_ones_stay(kind, X):
    out = fit_scaling(kind, X).transform(X)
    assert not out[:, 5].any()
    assert np.array_equal(out[:, 4], X[:, 4])


@pytest.mark.parametrize("kind", ["standard", "log", "pca"])
def test_binary_columns_are_scaled_when_asked(kind, X):
    out = fit_scaling(kind, X, binary="scale").transform(X, np.float64)
    assert np.allclose(np.delete(out, 5, axis=1).std(axis=0), 1.0)
    assert not np.array_equal(out[:, 4], X[:, 4])


def test_standard_is_zero_mean_and_unit_variance(X):
    wide = X.astype(np.float64)[:, :4]
    out = fit_scaling("standard", X).transform(X, np.float64)[:, :4]
    assert np.allclose(out, (wide - wide.mean(axis=0)) / wide.std(axis=0), rtol=1e-10, atol=1e-12)


def test_minmax_is_minus_one_to_one(X):
    scaling = fit_scaling("minmax", X)
    out = scaling.transform(X, np.float64)[:, :4]
    assert np.allclose(out.min(axis=0), -1.0, rtol=1e-12)
    assert np.allclose(out.max(axis=0), 1.0, rtol=1e-12)


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_beyond_the_range_are_held_at_its_ends(X, kind, dtype):
    """A map that was trained on no such row answers as it would at the end of the range; before, by chance."""
    scaling = fit_scaling(kind, X)
    far = np.vstack([X - 50, X + 50]).astype(dtype)
    held = far if kind == "none" else np.clip(far, X.min(axis=0), X.max(axis=0)).astype(dtype)
    assert np.array_equal(scaling.transform(far), scaling.transform(held))
    assert np.array_equal(
        scaling.transform(X), replace(scaling, low=scaling.low - 99, high=scaling.high + 99).transform(X)
    )


def test_the_range_is_that_of_rows_that_weigh_something(X):
    weights = np.ones(len(X))
    weights[X[:, 0].argmax()] = 0.0
    scaling = fit_scaling("standard", X, weights)
    assert scaling.high[0] == np.sort(X[:, 0])[-2]


def test_scalings_of_older_files_hold_nothing_back(X):
    document, arrays = fit_scaling("standard", X).to_parts()
    older = Scaling.from_parts(document, {k: v for k, v in arrays.items() if not k.endswith((".low", ".high"))})
    far = X.astype(np.float64) + 50
    assert np.array_equal(older.transform(far, np.float64), (far - older.centre) * older.factor)


def test_log_is_the_signed_log_of_heavy_columns_standardised(X):
    scaling = fit_scaling("log", X)
    assert scaling.log_columns.tolist() == [1, 3]
    wide = X.astype(np.float64)
    for j in (1, 3):
        logs = np.sign(wide[:, j]) * np.log1p(np.abs(wide[:, j]) / np.median(np.abs(wide[:, j])))
        expected = (logs - logs.mean()) / logs.std()
        assert np.allclose(scaling.transform(X, np.float64)[:, j], expected, rtol=1e-9, atol=1e-12)
    standard = fit_scaling("standard", X).transform(X)
    assert np.array_equal(scaling.transform(X)[:, [0, 2]], standard[:, [0, 2]])


def test_log_without_heavy_columns_is_standard():
    X = np.random.default_rng(0).normal(size=(500, 3))
    assert np.array_equal(fit_scaling("log", X).transform(X), fit_scaling("standard", X).transform(X))


@pytest.mark.parametrize(
    ("draw", "heavy"),
    [
        (lambda rng: rng.normal(size=3000), False),
        (lambda rng: rng.random(3000), False),
        (lambda rng: rng.exponential(size=3000), False),
        (lambda rng: rng.integers(0, 2, 3000), False),
        (lambda rng: (rng.random(3000) < 0.001).astype(float), False),
        (lambda rng: np.full(3000, 4.0), False),
        (lambda rng: rng.lognormal(0.0, 2.0, 3000), True),
        (lambda rng: -rng.lognormal(0.0, 2.0, 3000), True),
        (lambda rng: rng.standard_cauchy(3000), True),
        (lambda rng: rng.standard_cauchy(3000) * 1e150, True),
        (lambda rng: rng.poisson(0.1, 3000) * rng.lognormal(0.0, 1.0, 3000), True),
    ],
)
def test_heavy_tails_are_told_from_light_ones(draw, heavy):
    assert heavy_tailed(draw(np.random.default_rng(1))[:, None]).tolist() == [heavy]


def naive_rank(sample, value):
    """The share of the sample below the value, half of what equals it included."""
    return np.mean(sample < value) + 0.5 * np.mean(sample == value)


def test_quantile_of_few_distinct_values_is_their_middle_rank(X):
    out = fit_scaling("quantile", X).transform(X, np.float64)[:, 2]
    for value in range(4):
        expected = (naive_rank(X[:, 2], value) - 0.5) * math.sqrt(12)
        assert np.allclose(out[X[:, 2] == value], expected, rtol=1e-12)


def test_quantile_of_many_values_is_close_to_their_rank_and_has_variance_one(X):
    out = fit_scaling("quantile", X).transform(X, np.float64)
    for j in (0, 1, 3):
        ranks = np.array([naive_rank(X[:, j], value) for value in X[:, j]])
        assert np.abs(out[:, j] / math.sqrt(12) + 0.5 - ranks).max() < 1.5 / KNOTS
        assert out[:, j].std() == pytest.approx(1.0, abs=0.01)


def test_quantile_keeps_order_and_holds_values_beyond_the_range(X):
    scaling = fit_scaling("quantile", X)
    grid = np.zeros((400, 6), dtype=np.float32)
    grid[:, :4] = np.sort(np.random.default_rng(0).standard_cauchy((400, 4)) * 1e4, axis=0)
    out = scaling.transform(grid, np.float64)[:, :4]
    assert (np.diff(out, axis=0) >= 0).all()
    assert np.abs(out).max() <= math.sqrt(3)
    beyond = scaling.transform(np.full((1, 6), 1e30))[0, :4]
    assert np.array_equal(beyond, scaling.transform(X)[:, :4].max(axis=0))


def test_quantile_of_a_column_that_only_other_rows_vary():
    sample = np.zeros((50, 1))
    sample[:] = 3.0
    scaling = fit_scaling("quantile", sample, moments=moments_of(np.array([[3.0]] * 99 + [[-5.0], [10.0]])))
    assert np.allclose(scaling.transform(np.array([[-9.0], [-5.0], [3.0], [6.5], [20.0]]), np.float64)[:, 0],
                       np.array([-1.0, -1.0, 0.0, 0.5, 1.0]) * math.sqrt(3))  # fmt: skip


def test_pca_whitens_the_columns_it_may_change():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(2000, 3)) @ rng.normal(size=(3, 3)) * [1, 50, 0.1], rng.integers(0, 2, 2000)])
    out = fit_scaling("pca", X).transform(X, np.float64)
    assert np.allclose(np.cov(out[:, :3].T, bias=True), np.eye(3), atol=1e-9)
    assert np.allclose(out[:, :3].mean(axis=0), 0.0, atol=1e-9)
    assert np.array_equal(out[:, 3], X[:, 3])


def test_pca_is_the_product_with_its_rotation(X):
    scaling = fit_scaling("pca", X)
    standard = fit_scaling("standard", X).transform(X, np.float64)
    assert np.allclose(scaling.transform(X, np.float64), standard @ scaling.rotation, rtol=1e-12, atol=1e-12)


def test_pca_does_not_blow_up_an_empty_axis():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 5000))
    X = np.column_stack([a, b, a + b + 1e-6 * rng.normal(size=5000)])
    deviations = fit_scaling("pca", X).transform(X, np.float64).std(axis=0)
    assert np.allclose(deviations[:2], 1.0)
    assert deviations[2] < 1e-4 / math.sqrt(EIGENVALUE_FLOOR)


@pytest.mark.parametrize("kind", SCALINGS)
def test_tables_with_nothing_to_scale(kind):
    for X in (np.zeros((1, 2)), np.full((9, 2), 0.1), np.eye(3), np.array([[5.0, -1e30]])):
        out = fit_scaling(kind, X).transform(X)
        assert np.isfinite(out).all()
        assert kind == "none" or np.array_equal(out, X if X.shape == (3, 3) else np.zeros_like(X))


@pytest.mark.parametrize("kind", SCALINGS)
def test_extreme_values_stay_finite(kind):
    X = np.array([[1e-310, 1e300, 0.1], [2e-310, -1e300, 0.1 + 1e-16], [0.0, 5.0, 0.1]] * 50)
    assert np.isfinite(fit_scaling(kind, X).transform(X, np.float64)).all()


# -- moments of all rows


@pytest.mark.parametrize("kind", ["standard", "minmax"])
def test_moments_of_all_rows_replace_those_of_the_sample(kind, X):
    from_all = fit_scaling(kind, X[:50], moments=moments_of(X))
    assert np.array_equal(from_all.transform(X), fit_scaling(kind, X).transform(X))


def test_columns_are_binary_only_if_all_rows_say_so():
    everything = np.array([[0.0], [1.0], [5.0]])
    scaling = fit_scaling("minmax", everything[:2], moments=moments_of(everything))
    assert scaling.transform(everything)[:, 0].tolist() == pytest.approx([-1.0, -0.6, 1.0])


def test_moments_of_other_columns_are_refused(X):
    with pytest.raises(MismatchError, match="moments of 2 columns for a sample of 6"):
        fit_scaling("standard", X, moments=moments_of(X[:, :2]))


# -- files and refusals


@pytest.mark.parametrize("kind", SCALINGS)
def test_parts_survive_the_round_trip(kind, X):
    scaling = fit_scaling(kind, X, binary="scale")
    document, arrays = scaling.to_parts()
    again = Scaling.from_parts(dict(document), {name: array.copy() for name, array in arrays.items()} | {"w": X})
    assert (again.kind, again.binary) == (kind, "scale")
    assert np.array_equal(again.transform(X), scaling.transform(X))


@pytest.mark.parametrize(
    "damage",
    [
        {"factor": np.ones(5)},
        {"factor": np.ones(6, dtype=np.float32)},
        {"centre": np.array([0.0] * 5 + [math.nan])},
        {"log_columns": np.array([1, 6])},
        {"log_columns": np.array([-1, 3])},
        {"log_columns": np.array([3, 3])},
        {"log_rates": np.array([1.0])},
        {"rank_columns": np.array([2, 2**40])},
        {"rank_offsets": np.array([0, 9])},
        {"rank_offsets": np.array([0, 4, 10])},
        {"rank_offsets": np.array([0, 9, 9])},
        {"rank_offsets": np.array([-3, 4, 9])},
        {"rank_offsets": np.array([], dtype=np.int64)},
        {"levels": np.zeros(8)},
        {"knots": np.zeros((3, 3))},
        {"rotation": np.zeros((6, 5))},
        {"low": np.zeros(5)},
        {"high": np.full(6, -1e300)},
        {"rotation": np.zeros((0, 0))},
    ],
)
def test_damaged_arrays_are_refused_before_compiled_code_sees_them(damage):
    document, arrays = pinned_scaling().to_parts()
    ((name, array),) = damage.items()
    with pytest.raises(FileFormatError, match="damaged scaling"):
        Scaling.from_parts(document, arrays | {f"scaling.{name}": array})


def test_missing_arrays_and_unknown_kinds_are_refused():
    document, arrays = pinned_scaling().to_parts()
    for name in arrays.keys() - {"scaling.low", "scaling.high"}:
        with pytest.raises(FileFormatError, match="missing"):
            Scaling.from_parts(document, {key: value for key, value in arrays.items() if key != name})
    for wrong in ({}, document | {"kind": "magic"}, document | {"binary": None}, document | {"kind": []}, [1]):
        with pytest.raises(FileFormatError, match="damaged scaling"):
            Scaling.from_parts(wrong, arrays)


def test_wrong_number_of_columns_names_both(X):
    with pytest.raises(MismatchError, match=r"fitted on 6 columns, and the data has shape \(700, 5\)"):
        fit_scaling("standard", X).transform(X[:, :5])


def test_unknown_kinds_and_empty_samples_are_refused(X):
    with pytest.raises(InputError, match=r"no scaling 'robust'.*choose one of none, standard"):
        fit_scaling("robust", X)
    with pytest.raises(InputError, match="binary columns 'drop'"):
        fit_scaling("standard", X, binary="drop")
    with pytest.raises(DataError, match="at least 1 row"):
        fit_scaling("standard", X[:0])


def test_description_counts_columns(X):
    assert fit_scaling("log", X).describe() == "log scaling of 6 columns, signed log of 2, 1 left alone, 1 constant"
    assert fit_scaling("quantile", X).describe() == "quantile scaling of 6 columns, 1 left alone, 1 constant"
    assert fit_scaling("none", X).describe() == "none scaling of 6 columns"


def test_a_scaling_cannot_be_changed_in_place(X):
    scaling = fit_scaling("standard", X)
    with pytest.raises(AttributeError):
        scaling.kind = "none"
    assert replace(scaling, factor=scaling.factor * 2).factor[0] == 2 * scaling.factor[0]


@pytest.mark.parametrize("kind", ["none", "standard", "minmax", "quantile", "log", "pca"])
def test_a_weight_is_a_number_of_copies(kind):
    rng = np.random.default_rng(0)
    rows = np.c_[rng.normal(3, 2, 150), np.exp(3 * rng.normal(size=150)), rng.integers(0, 2, 150), np.full(150, 0.1)]
    counts = rng.integers(0, 4, 150)
    rows[counts == 0] *= 1e6
    weighted, copies = fit_scaling(kind, rows, 0.3 * counts), fit_scaling(kind, np.repeat(rows, counts, axis=0))
    some = rows[counts > 0]
    assert np.allclose(weighted.transform(some, np.float64), copies.transform(some, np.float64), rtol=1e-9, atol=1e-9)
    assert np.array_equal(heavy_tailed(rows[counts > 0], counts[counts > 0]), heavy_tailed(np.repeat(rows, counts, 0)))


def test_many_different_values_have_knots_at_equal_steps_of_weight():
    values = np.random.default_rng(0).normal(size=(5000, 1))
    heavy = np.where(values[:, 0] > 1, 50.0, 1.0)
    out = fit_scaling("quantile", values, heavy).transform(values, np.float64)[:, 0]
    share = np.average(out < 0, weights=heavy)
    assert share == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("size", [1e-300, 1.0, 1e300])
def test_weighted_moments_neither_overflow_nor_find_spread_in_a_constant(size):
    rows = size * np.array([[1.0, 0.1], [3.0, 0.1], [-7.0, 0.1]])
    scaling = fit_scaling("standard", rows, np.array([0.1, 0.7, 0.2]))
    out = scaling.transform(rows, np.float64)
    assert np.average(out[:, 0], weights=[0.1, 0.7, 0.2]) == pytest.approx(0.0, abs=1e-12)
    assert np.average(out[:, 0] ** 2, weights=[0.1, 0.7, 0.2]) == pytest.approx(1.0)
    assert not out[:, 1].any()
