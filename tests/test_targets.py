"""Targets as digits: exact, and refused where they would not be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statistics_conformance import StatisticConformance, make_blocks

from streamrf.features.precision import make_precision
from streamrf.features.targets import DIGITS, TargetCoding
from streamrf.statistics.targets import ScanTargets, TargetScan, infer_task, settle_targets
from streamrf.support.errors import DataError

EXACT = [make_precision(name) for name in DIGITS]
numbers = st.floats(-1e9, 1e9, allow_nan=False)


def decoded(coding, y, precision):
    columns = coding.encode(y, precision)
    return coding.combine(columns, precision) + coding.offset


@pytest.mark.parametrize("precision", EXACT, ids=lambda p: p.name)
@given(low=numbers, width=st.floats(1e-6, 1e9), places=st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_digits_hold_the_target_to_the_step(precision, low, width, places):
    high = low + width
    if high == low:
        return
    coding = TargetCoding.regression(np.array([low]), np.array([high]))
    y = low + np.array(places) * (high - low)
    assert np.abs(decoded(coding, y, precision)[:, 0] - y).max() <= coding.step[0] + 1e-15 * np.abs(y).max()
    digits = coding.encode(y, precision)
    assert np.abs(digits).max() <= precision.scale


@pytest.mark.parametrize("precision", EXACT, ids=lambda p: p.name)
def test_whole_numbers_are_held_exactly(precision):
    y = np.arange(3, 10)
    coding = TargetCoding.regression(np.array([3.0]), np.array([9.0]))
    assert np.array_equal(decoded(coding, y, precision)[:, 0], y)


@pytest.mark.parametrize("precision", EXACT, ids=lambda p: p.name)
def test_later_targets_have_head_room_but_not_without_end(precision):
    coding = TargetCoding.regression(np.array([-1.0]), np.array([1.0]))
    assert np.allclose(decoded(coding, np.array([30.0, -30.0]), precision)[:, 0], [30, -30])
    with pytest.raises(DataError, match="outside 0 ±"):
        coding.encode(np.array([0.0, 1e6]), precision)


def test_two_classes_are_one_column_of_signs_and_more_are_one_hot():
    two, three = TargetCoding.classification((0, 1)), TargetCoding.classification(("a", "b", "c"))
    assert two.values(np.array([1, 0, 1])).tolist() == [[1], [-1], [1]]
    assert three.values(np.array(["c", "a"])).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_an_unknown_label_is_named():
    coding = TargetCoding.classification(("cat", "dog"))
    with pytest.raises(DataError, match="'cow' is not one of the 2 classes"):
        coding.codes(np.array(["cat", "cow"]))


@pytest.mark.parametrize(
    ("y", "task"),
    [
        (np.array(["a", "b"]), "classification"),
        (np.array([True, False]), "classification"),
        (np.arange(10), "classification"),
        (np.arange(60), "regression"),
        (np.repeat(np.arange(26), 30), "classification"),  # letters
        (np.repeat([1, 2, 3, 4, 5, 7], [90, 40, 80, 40, 45, 90]), "classification"),  # labels of which one is not used
        (np.repeat([2, 4, 9, 14], [50, 50, 49, 51]), "classification"),  # in any numbers, if all are as common
        (np.repeat([3, 4, 5, 6, 7, 8, 9], [2, 16, 145, 219, 88, 17, 1]), "regression"),  # grades
        (np.repeat(np.arange(1, 21), [1, *range(2, 21)]), "regression"),  # counts with a thin tail
        (np.repeat([12, 13, 14, 16, 18], [5, 1, 1, 3, 1]), "regression"),  # years of school
        (np.array([0.0, 1.0, 1.0]), "classification"),
        (np.array([0.0, 0.5, 1.0]), "regression"),
    ],
)
def test_the_task_is_inferred(y, task):
    scan = TargetScan()
    scan.update(y)
    assert infer_task(scan, y.dtype.kind) == task


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (np.ones(5), "regression", "constant"),
        (np.array(["x", "x"]), "auto", "one class only"),
        (np.array([1.0, np.nan]), "auto", "1 of 2 targets are missing"),
        (np.array(["a", "b"]), "regression", "labels, not numbers"),
        (np.arange(2000.0), "classification", "more than 1000 different labels"),
    ],
)
def test_targets_that_cannot_be_learnt(y, task, message):
    scan = TargetScan()
    scan.update(y)
    with pytest.raises(DataError, match=message):
        settle_targets(scan, task, y.dtype.kind, "error")


def test_coding_survives_the_file():
    for coding in (TargetCoding.regression(np.zeros(2), np.ones(2)), TargetCoding.classification(("a", "b", "c"))):
        again = TargetCoding.from_parts(*coding.to_parts())
        assert again.classes == coding.classes
        assert np.array_equal(again.step, coding.step)


class TestTargetScanConformance(StatisticConformance):
    @pytest.fixture(params=[int, bool])
    def y(self, request):
        return np.random.default_rng(0).integers(0, 4 if request.param is int else 2, 240).astype(request.param)

    @pytest.fixture
    def blocks(self, y):
        return make_blocks(np.zeros((len(y), 0)), y, [50, 50, 131])

    @pytest.fixture
    def statistic(self):
        return ScanTargets()

    def test_size_is_known_beforehand(self, statistic, blocks):
        """It is not: labels are counted as they come, a thousand of them at most."""
        assert len(self.total(statistic, blocks).arrays()["scan.labels"]) <= 1000


@pytest.mark.parametrize("y", [np.random.default_rng(0).standard_normal(3000), np.array(list("abca") * 60)])
def test_scans_of_parts_add_up_to_the_scan_of_all(y):
    whole, parts = TargetScan(), [TargetScan(), TargetScan()]
    whole.update(y)
    for part, rows in zip(parts, (y[:70], y[70:]), strict=True):
        part.update(rows)
    parts[0] += ScanTargets().load(parts[1].arrays())
    assert (parts[0].rows, parts[0].labels) == (whole.rows, whole.labels)
    assert np.array_equal(parts[0].arrays()["scan.range"], whole.arrays()["scan.range"])


def test_targets_far_from_those_to_fit_make_steps_coarser_and_nothing_else():
    coding = TargetCoding.regression(np.array([-7.0]), np.array([9.0]))
    near = coding.narrowed(np.array([0.0, 2.0]))
    assert (near.offset, near.step) == (1.0, 2.0**-26)
    far = TargetCoding.regression(np.array([-1e6]), np.array([0.0])).narrowed(np.array([0.0, 2.0]))
    assert far.offset == pytest.approx(1.0, abs=far.step[0])
    assert 2**28 < 1e6 / far.step < 2**29
    for each in (near, far):
        y = np.array([-7.0, 0.1, 9.0])
        digits = each.encode(y, make_precision("8"))
        assert each.combine(digits, make_precision("8"))[:, 0] + each.offset == pytest.approx(y, abs=each.step[0])


def test_targets_to_fit_that_are_all_equal_leave_room_for_the_others():
    coding = TargetCoding.regression(np.array([-7.0]), np.array([9.0])).narrowed(np.array([3.0, 3.0]))
    assert coding.encode(np.array([-7.0, 9.0]), make_precision("12")).shape == (2, 3)


@pytest.mark.parametrize(
    ("labels", "cure"),
    [
        ([f"{i},5" for i in range(4)], "decimal"),
        ([f"{i}/12/2023" for i in range(1, 4)], "dates"),
        ([*map(str, range(1000, 1060)), "unknown"], "null='unknown'"),
        ([f"{i}.5" for i in range(60)], "store numbers"),
    ],
)
def test_text_that_was_meant_to_be_numbers_does_not_become_classes(labels, cure):
    scan = TargetScan()
    scan.update(np.array(labels, object))
    with pytest.raises(DataError, match=cure):
        settle_targets(scan, "auto", "O", "error")
    assert settle_targets(scan, "classification", "O", "error").classes


@pytest.mark.parametrize("labels", [["yes", "no"], ["1", "2", "3"], ["01067", "01069"], ["a", *map(str, range(9))]])
def test_labels_that_look_like_few_numbers_are_classes(labels):
    scan = TargetScan()
    scan.update(np.array(labels, object))
    assert len(settle_targets(scan, "auto", "O", "error").classes) == len(labels)
