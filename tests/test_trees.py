"""Trees: cut points and codes, growing against a reference, boosting and when it stops, and rows as bytes."""

from __future__ import annotations

import hypothesis.extra.numpy as hn
import numpy as np
import pytest
import trees_reference as naive
from hypothesis import given, settings
from hypothesis import strategies as st
from statistics_conformance import StatisticConformance, assert_same, make_blocks

from streamrf.features.pipeline import Pipeline, map_from_parts
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.features.trees import boosting
from streamrf.features.trees import cutting as cutting_
from streamrf.features.trees import scores as scores_
from streamrf.features.trees.boosting import MIXED, Boosting, Style, settled
from streamrf.features.trees.cutting import FREE_DEPTH
from streamrf.features.trees.forest import Cells, Forest
from streamrf.features.trees.growth import COUNT_BITS, bits_for
from streamrf.features.trees.levels import Levels
from streamrf.features.trees.lines import Lines
from streamrf.features.trees.map import MOST_CUTS, Nodes, TreesMap
from streamrf.features.trees.scores import CLASSES, SQUARES, Rows
from streamrf.statistics.coded_rows import CodedRows
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.threads import ALONE, Threads

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
HUGE = float(np.finfo(np.float32).max)


# -- cut points and codes


def assert_codes_are_counts(X: np.ndarray, seen: np.ndarray) -> TreesMap:
    """A value is beyond a cut if and only if its code is larger than the cut's place."""
    map = TreesMap.ungrown(X, SQUARES)
    codes = map.codes(seen)
    for j, count in enumerate(map.counts):
        cuts = map.cuts[j, :count]
        assert (np.diff(cuts) > 0).all()
        assert np.isposinf(map.cuts[j, count:]).all()
        assert np.array_equal(seen[:, j, None] > cuts, codes[j, :, None] > np.arange(count))
    return map


@given(
    hn.arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 3)), elements=FLOATS),
    st.lists(FLOATS, max_size=9),
)
def test_codes_say_on_which_side_of_every_threshold_a_value_is(X, others):
    seen = np.concatenate([X, np.tile(np.array(others, np.float32)[:, None], X.shape[1])])
    map = assert_codes_are_counts(X, seen)
    for j, codes in enumerate(map.codes(X)):  # few values: each has a code of its own
        values = np.unique(X[:, j])
        assert map.counts[j] == len(values) - 1
        assert np.array_equal(codes, np.searchsorted(values, X[:, j]))


@pytest.mark.parametrize("values", [
    [0.0], [-0.0, 0.0], [1.0, np.nextafter(np.float32(1), np.float32(2))], [-HUGE, HUGE], [-HUGE, 0.0, HUGE],
    [HUGE, np.nextafter(np.float32(HUGE), np.float32(0))], [1e-45, 3e-45], [-1e-45, 0.0, 1e-45],
])  # fmt: skip
def test_cut_points_of_awkward_values(values):
    X = np.array(values, np.float32)[:, None]
    map = assert_codes_are_counts(X, X)
    assert map.counts[0] == len(np.unique(X)) - 1


@pytest.mark.parametrize("count", [MOST_CUTS, MOST_CUTS + 1, MOST_CUTS + 2, 5000])
def test_columns_of_many_values_are_cut_by_rows_and_by_distance(count):
    """Quantiles alone would leave the long tail in one piece, whose rows may differ most."""
    X = np.random.default_rng(0).permutation(np.exp(np.linspace(0, 10, count)))[:, None].astype(np.float32)
    map = assert_codes_are_counts(X, X)
    assert min(count - 1, MOST_CUTS // 2) <= map.counts[0] <= min(count - 1, MOST_CUTS)
    assert np.bincount(map.codes(X)[0]).max() <= 2 * count / (MOST_CUTS // 2) + 1
    inner = map.cuts[0][: map.counts[0]]
    assert np.diff(inner).max() <= max(0.03 * X.max(), np.diff(np.unique(X)).max() * 1.01)


def test_a_value_that_most_rows_have_takes_one_code():
    X = np.concatenate([np.zeros(9000), np.arange(1, 1001)])[:, None].astype(np.float32)
    map = assert_codes_are_counts(X, X)
    codes = map.codes(X)[0]
    assert len(np.unique(codes[:9000])) == 1
    assert 120 < len(np.unique(codes[9000:])) <= 256
    assert codes[9000:].min() > codes[0]


def test_rows_of_another_width_are_refused():
    with pytest.raises(MismatchError, match="for 2 columns, and the rows have 3"):
        TreesMap.ungrown(np.zeros((4, 2)), SQUARES).codes(np.zeros((4, 3), np.float32))


# -- growing


def table(loss: str, outputs: int = 1, count: int = 150, seed: int = 0, *, weighted: bool = False) -> Rows:
    """Rows of four columns, with 9, 5, 1 and no cuts."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, most, count) for most in (10, 6, 2, 1)]).astype(np.uint8)
    level = codes[0] - 3.0 * (codes[1] > 2) * codes[2] + 0.5 * rng.standard_normal(count)
    if loss == SQUARES:
        targets = np.stack([level, np.cos(level), codes[1] - level][:outputs], axis=1)
    elif outputs == 1:
        targets = (level > 3).astype(np.float64)[:, None]
    else:
        targets = np.eye(outputs)[np.digitize(level, np.quantile(level, np.arange(1, outputs) / outputs))]
    return Rows(codes, targets, rng.integers(1, 5, count) / 2 if weighted else np.ones(count))


CUTS = np.array([9, 5, 1, 0])
CASES = [(SQUARES, 1), (SQUARES, 3), (CLASSES, 1), (CLASSES, 3)]


def assert_equal(found: Forest, wanted: Forest) -> None:
    assert len(found) == len(wanted)
    np.testing.assert_allclose(found.start, wanted.start, rtol=1e-12, atol=1e-12)
    for one, other in zip(found.cells, wanted.cells, strict=True):
        assert (one.columns.tolist(), one.cuts.tolist()) == (other.columns.tolist(), other.cuts.tolist())
        assert (one.children is None) == (other.children is None)
        assert one.children is None or one.children.tolist() == other.children.tolist()
    for one, other in zip(found.values, wanted.values, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("style", [MIXED, Style(6), Style(1 << FREE_DEPTH)])
@pytest.mark.parametrize(("loss", "outputs"), CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_trees_are_those_of_the_reference(loss, outputs, weighted, style, monkeypatch):
    monkeypatch.setitem(cutting_.LEAST, loss, 3)
    rows = table(loss, outputs, weighted=weighted)
    found = Boosting(loss, CUTS, 7, ALONE, style=style).grow(rows, None, 4)
    assert_equal(found, naive.grow(rows, CUTS, loss, 4, 7, style))
    assert max(cells.leaves for cells in found.of_kind(symmetric=False)) > 5


@pytest.mark.parametrize(("loss", "outputs"), CASES)
def test_the_same_cells_get_values_of_other_rows(loss, outputs):
    rows, more = table(loss, outputs), table(loss, outputs, 333, 1, weighted=True)
    boosted = Boosting(loss, CUTS, 7, ALONE)
    forest = boosted.grow(rows, None, 4)
    found = boosted.refitted(forest, rows.and_(more))
    together, scores = rows.and_(more), np.tile(found.start, (483, 1))
    for cells, values in zip(forest.cells, found.values, strict=True):
        leaf, wanted = naive.leaf_values(together, scores, cells, loss)
        np.testing.assert_allclose(values, wanted, rtol=1e-9, atol=1e-12)
        scores += wanted[leaf]
    again = boosted.refitted(forest, rows)
    assert again.coefficients.tobytes() == forest.coefficients.tobytes()


@pytest.mark.parametrize(("loss", "outputs"), CASES)
@pytest.mark.parametrize("patience", [3, 10])
def test_unseen_rows_say_when_to_stop(loss, outputs, patience, monkeypatch):
    """As many trees as they like best; the search ends once so many have brought nothing."""
    monkeypatch.setattr(boosting, "PATIENCE", patience)
    rows, unseen, most = table(loss, outputs, 90), table(loss, outputs, 60, 5), 400
    whole = Boosting(loss, CUTS, 3, ALONE).grow(rows, None, most)
    losses = [naive.mean_loss(scores, unseen, loss) for scores in naive.scores_of(whole, unseen.codes)]
    best = 0
    for count, value in enumerate(losses):
        if value < losses[best]:
            best = count
        elif count - best >= patience:
            break
    else:
        pytest.fail("every tree was liked: the table is no test")
    assert 0 < best < most
    found = Boosting(loss, CUTS, 3, ALONE).grow(rows, unseen, most)
    assert_equal(found, whole.first(best))


def test_trees_that_unseen_rows_do_not_like_are_none():
    rows = table(SQUARES)
    turned = Rows(rows.codes, 2 * rows.targets.mean() - rows.targets, rows.weights)
    assert len(Boosting(SQUARES, CUTS, 0, ALONE).grow(rows, turned, 500)) == 0


def bits_of(forest: Forest) -> bytes:
    cuts = (a.tobytes() for c in forest.cells for a in (c.columns, c.cuts, c.children) if a is not None)
    return b"".join(cuts) + forest.coefficients.tobytes() + forest.start.tobytes()


@pytest.mark.parametrize(("loss", "outputs"), [*CASES, (SQUARES, 7), (CLASSES, 7)])
def test_threads_change_no_bit(loss, outputs, monkeypatch):
    """Not with pieces of rows either, nor with more columns than a tree sees or more outputs than choose its cells."""
    monkeypatch.setattr(scores_, "PIECE", 64)
    monkeypatch.setattr(cutting_, "LINES_A_TREE", 2)
    monkeypatch.setattr(cutting_, "SMALL_WORK", 0)
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 20, (9, 700)).astype(np.uint8)
    scores = codes[:7].T + rng.standard_normal((700, 7))
    targets = scores[:, :outputs] if loss == SQUARES else np.eye(7)[scores.argmax(axis=1)][:, :outputs]
    rows = Rows(codes, targets, rng.random(700))
    forests = []
    for count in (1, 2, 3):
        with Threads(count) as threads:
            forests.append(Boosting(loss, np.full(9, 19), 0, threads).grow(rows, rows, 20))
    bits = [bits_of(forest) for forest in forests]
    assert len(forests[0]) > 2
    assert bits[0] == bits[1] == bits[2]


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize(("loss", "outputs"), [*CASES, (SQUARES, 7)])
def test_nodes_without_tables_are_cut_alike(loss, outputs, levels, monkeypatch):
    """Whether a node has a histogram of all bins, or each line is summed anew, in nodes of any number of rows."""
    rng = np.random.default_rng(2)
    codes = np.stack([rng.integers(0, most, 900) for most in (256, 200, 65, 2)]).astype(np.uint8)
    group, cuts = Levels.none(4), np.array([255, 199, 64, 1])
    if levels:  # three levels, and their places
        place = rng.integers(1, 4, 900).astype(np.uint8)
        codes, cuts = np.vstack([codes, [place == 1, place == 2, place == 3], place]), np.append(cuts, [1, 1, 1, 3])
        group = Levels(np.array([-1] * 4 + [0] * 3, np.int32), np.array([0] * 4 + [1, 2, 3], np.int32))
    scores = codes[[0, 1, 2, 3, 0, 1, -1]].T / codes.max() + (codes[-1] == 2)[:, None] + rng.standard_normal((900, 7))
    targets = scores[:, :outputs] if loss == SQUARES else np.eye(7)[scores.argmax(axis=1)][:, :outputs]
    rows, found = Rows(np.ascontiguousarray(codes, np.uint8), targets, rng.integers(0, 4, 900) / 2), set()
    for few in (0.0, 0.3, 2.0, 1e6):
        monkeypatch.setattr(cutting_, "FEW", few)
        found.add(
            bits_of(Boosting(loss, cuts, 1, ALONE, levels=group, style=Style(1 << FREE_DEPTH)).grow(rows, None, 6))
        )
    assert len(found) == 1


@pytest.mark.parametrize("leaves", [2, 5, 12])
def test_nodes_that_few_leaves_leave_out_are_not_grown(leaves, monkeypatch):
    """And those that stay are those of the whole tree."""
    monkeypatch.setitem(cutting_.LEAST, SQUARES, 3)
    grown, keep = [], cutting_.best_nodes

    def noted(columns: np.ndarray, gains: np.ndarray, most: int) -> np.ndarray:
        grown.append((columns.copy(), gains.copy()))
        return keep(columns, gains, most)

    monkeypatch.setattr(cutting_, "best_nodes", noted)
    rows = table(SQUARES, count=600)
    slopes = rows.targets - rows.targets.mean()
    for most in (leaves, 1 << FREE_DEPTH):
        lines = Lines.of(rows.codes, CUTS, Levels.none(4))
        cutting_.Cutting(rows, lines, SQUARES, np.random.default_rng(0), ALONE).free(slopes, most)
    (some, gains), (every, all_gains) = grown
    assert keep(some, gains, leaves).tolist() == keep(every, all_gains, leaves).tolist()
    assert (some >= 0).sum() < (every >= 0).sum()


def test_one_heavy_row_leaves_trees_their_leaves():
    """Leaves ask for a few rows of the mean weight, not of the heaviest."""
    rows = table(SQUARES, count=2000)
    heavy = Rows(rows.codes, rows.targets, np.where(np.arange(2000) == 0, 1000.0, 1.0))
    found, usual = (
        Boosting(SQUARES, CUTS, 0, ALONE, style=Style(64)).grow(each, None, 5).most_leaves for each in (heavy, rows)
    )
    assert found > usual / 2


def test_rows_of_no_weight_have_no_say():
    """Where they are among the rows all the same: cells and values are those of the others, if these are drawn."""
    rows = table(SQUARES, count=80)
    silent = Rows(rows.codes, rows.targets + 100 * (np.arange(80) % 2)[:, None], 1.0 - np.arange(80) % 2)
    loud = Rows(rows.codes, rows.targets, silent.weights)
    found, wanted = (Boosting(SQUARES, CUTS, 0, ALONE).grow(each, None, 5) for each in (silent, loud))
    assert_equal(found, wanted)


def test_more_leaves_than_rows():
    rows = table(SQUARES, count=5)
    forest = Boosting(SQUARES, CUTS, 0, ALONE).grow(rows, None, 10)
    assert len(forest) == 10
    assert np.isfinite(forest.coefficients).all()


def test_one_value_in_every_column_grows_nothing():
    rows = Rows(np.zeros((3, 50), np.uint8), np.arange(50.0)[:, None], np.ones(50))
    forest = Boosting(SQUARES, np.zeros(3, int), 0, ALONE).grow(rows, None, 10)
    assert (len(forest), forest.start.tolist()) == (0, [24.5])
    assert boosting.most_trees(50, 0, 1) >= 1


def test_targets_that_are_all_alike_are_fitted_by_the_start():
    rows = table(SQUARES)
    alike = Rows(rows.codes, np.full((150, 1), 3.0), rows.weights)
    forest = Boosting(SQUARES, CUTS, 0, ALONE).grow(alike, None, 3)
    assert forest.start.tolist() == [3.0]
    assert not forest.coefficients.any()


# -- the map


@pytest.fixture(scope="module")
def grown() -> tuple[TreesMap, Forest, np.ndarray]:
    """A map with trees of both kinds, and inputs: two numbers, and the levels of a category."""
    rng = np.random.default_rng(4)
    level = rng.integers(0, 4, 1200)
    X = np.hstack([rng.standard_normal((1200, 2)), np.eye(4)[level][:, :3]]).astype(np.float32)
    y = (X[:, 0] + (X[:, 1] > 0) + np.array([3.0, 0, 2, 1])[level])[:, None]
    map = TreesMap.ungrown(X, SQUARES, targets=y)
    rows = Rows(map.with_places(map.codes(X)), y, np.ones(1200))
    forest = Boosting(SQUARES, map.counts, 0, ALONE, levels=map.levels).grow(rows, None, 25)
    assert 5 in np.concatenate([cells.columns for cells in forest.cells])
    return map.grown(forest), forest, X


def test_scores_of_thresholds_are_those_of_codes(grown):
    map, forest, X = grown
    values = forest.coefficients.astype(np.float32)
    found = map.scorer(values, forest.start).scores(X, ALONE)
    rounded = Forest(forest.start, forest.cells, [each.astype(np.float32).astype(np.float64) for each in forest.values])
    np.testing.assert_allclose(found, naive.scores_of(rounded, map.with_places(map.codes(X)))[-1], rtol=1e-12)
    with Threads(3) as threads:
        assert np.array_equal(map.scorer(values, forest.start).scores(X, threads), found)
    one_by_one = [map.scorer(values, forest.start).scores(X[i : i + 1], ALONE) for i in range(9)]
    assert np.array_equal(np.concatenate(one_by_one), found[:9])


def test_features_say_which_leaves_a_row_is_in(grown):
    map, forest, X = grown
    out = np.full((40, map.n_features), 7, np.int8)
    map.compute(X[:40], out, ALONE)
    first, others = out[:, : map.n_symmetric], out[:, map.n_symmetric :]
    assert np.array_equal(first.reshape(40, 12, map.leaves).sum(axis=2), np.ones((40, 12)))
    assert np.array_equal(others.reshape(40, 13, map.nodes.leaves).sum(axis=2), np.ones((40, 13)))
    values = forest.coefficients.astype(np.float32)
    found = map.scorer(values, forest.start).scores(X[:40], ALONE)
    np.testing.assert_allclose(out @ values.astype(np.float64) + forest.start, found, rtol=1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
def test_scores_of_classes_are_log_odds(outputs):
    rows = table(CLASSES, outputs)
    X = rows.codes.T.astype(np.float32)
    map = TreesMap.ungrown(X, CLASSES)
    forest = Boosting(CLASSES, map.counts, 0, ALONE).grow(rows, None, 30)
    values = forest.coefficients.astype(np.float32)
    found = map.grown(forest).scorer(values, forest.start).scores(X, ALONE)
    np.testing.assert_allclose(found, naive.scores_of(forest, rows.codes)[-1], atol=1e-5)
    p = naive.expected(found, CLASSES)
    right = (p[:, 0] > 0.5) == rows.targets[:, 0] if outputs == 1 else p.argmax(axis=1) == rows.targets.argmax(axis=1)
    assert right.mean() > 0.85


# -- levels of categories, and what histograms are made of


def category(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows as bytes (a number and five levels, of which a row has at most one), targets, and cuts."""
    rng = np.random.default_rng(seed)
    level = rng.integers(0, 6, 600)
    codes = np.vstack([rng.integers(0, 9, 600), np.eye(6, dtype=int)[level][:, :5].T]).astype(np.uint8)
    y = np.array([4.0, -1, 7, 0, 2, 1])[level] + 0.3 * codes[0] + 0.1 * rng.standard_normal(600)
    return codes, y[:, None], np.array([8, 1, 1, 1, 1, 1])


def learned(codes: np.ndarray, targets: np.ndarray, cuts: np.ndarray, weights: np.ndarray | None = None) -> Levels:
    return Levels.learned(codes.T > 0, targets, weights, cuts == 1)


def test_levels_are_in_the_order_of_their_targets():
    codes, y, cuts = category()
    levels = learned(codes, y, cuts)
    assert levels.group.tolist() == [-1, 0, 0, 0, 0, 0]
    assert levels.place.tolist() == [0, 4, 1, 5, 2, 3]
    assert [members.tolist() for members in levels.members] == [[2, 4, 5, 1, 3]]
    assert np.array_equal(levels.places(codes > 0), (levels.place @ codes)[None])
    turned = learned(codes, -y, cuts)
    assert turned.place.tolist() == [0, 2, 5, 1, 4, 3]
    noise = np.random.default_rng(1).standard_normal((600, 1))
    assert learned(codes, np.hstack([noise, y]), cuts).place.tolist() == levels.place.tolist()  # the output that tells
    unlike = np.where(codes[1] > 0, 0.0, 1.0)
    assert learned(codes, y, cuts, unlike).place.tolist() == [0, 3, 1, 5, 2, 4]  # rows of no weight say nothing


def test_levels_are_neighbours_of_which_no_row_has_two():
    codes, y, cuts = category()
    both = codes.copy()
    both[3, 0] = both[4, 0] = 1
    assert learned(both, y, cuts).group.tolist() == [-1, 0, 0, 0, -1, -1]  # two are too few
    apart = codes[[1, 2, 3, 0, 4, 5]]
    assert learned(apart, y, cuts[[1, 2, 3, 0, 4, 5]]).group.tolist() == [0, 0, 0, -1, -1, -1]
    assert Levels.none(3).places(np.zeros((3, 7), bool)).shape == (0, 7)


@pytest.mark.parametrize("style", [MIXED, Style(9)])
def test_levels_share_a_line_where_no_row_has_two(style):
    """The trees are those of a line for each column, as the reference grows them."""
    codes, y, cuts = category()
    levels = learned(codes, y, cuts)
    rows = Rows(np.concatenate([codes, levels.places(codes > 0)]), y, np.ones(600))
    cuts = np.append(cuts, 5)
    assert Lines.of(rows.codes, cuts, levels).columns.tolist() == [0, 6]
    found = Boosting(SQUARES, cuts, 3, ALONE, levels=levels, style=style).grow(rows, None, 3)
    assert_equal(found, Boosting(SQUARES, cuts, 3, ALONE, style=style).grow(rows, None, 3))
    used = np.concatenate([cells.columns for cells in found.cells])
    assert {0, 6} <= set(used.tolist())
    two = rows.codes.copy()
    two[[1, 2], 0] = 1  # which the sample did not have
    two[6] = levels.places(two[:6] > 0)
    assert Lines.of(two, cuts, levels).columns.tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_single_levels_are_parted_by_the_shared_line():
    codes, y, cuts = category()
    y = np.where(codes[5] > 0, 1.0, 0.0)[:, None]  # one in the middle: its place needs two cuts, its column one
    levels = Levels(np.array([-1, 0, 0, 0, 0, 0], np.int32), np.array([0, 1, 2, 4, 5, 3], np.int32))
    rows = Rows(np.concatenate([codes, levels.places(codes > 0)]), y, np.ones(600))
    forest = Boosting(SQUARES, np.append(cuts, 5), 3, ALONE, levels=levels).grow(rows, None, 2)
    assert [(cells.columns[0], cells.cuts[0]) for cells in forest.cells] == [(5, 0), (5, 0)]


# -- what kind of trees


def test_unseen_rows_choose_the_style_and_the_rate():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (3, 6000)).astype(np.uint8)
    table = rng.standard_normal((16, 16, 16))
    cuts = np.full(3, 15)

    def style_for(y: np.ndarray) -> Boosting:
        fitted, unseen = (
            Rows(codes[:, part], y[part, None], np.ones(3000)) for part in (slice(3000), slice(3000, None))
        )
        return settled(SQUARES, cuts, 0, ALONE, Levels.none(3), fitted, unseen)

    plain = style_for(codes[0] / 16 + 2 * rng.standard_normal(6000))
    assert plain.style == MIXED
    assert plain.rate < boosting.RATE
    assert plain.patience > boosting.PATIENCE
    pairs = style_for(10 * table[0][codes[0], codes[1]] + 0.1 * rng.standard_normal(6000))
    assert pairs.style != MIXED


@pytest.mark.parametrize(("leaves", "trials"), [(4, 3), (64, 2)])
def test_more_leaves_than_trees_ask_for_are_not_tried(leaves, trials, monkeypatch):
    tried, grow = [], Boosting.grow
    monkeypatch.setattr(boosting, "STYLES", (MIXED, Style(leaves), Style(1 << FREE_DEPTH)))
    monkeypatch.setattr(Boosting, "grow", lambda self, *about: (tried.append(self.style), grow(self, *about))[1])
    rows, unseen = table(SQUARES), table(SQUARES, seed=1)
    settled(SQUARES, CUTS, 0, ALONE, Levels.none(4), rows, unseen)
    assert tried == list(boosting.STYLES[:trials])


def test_values_of_all_leaves_have_a_bound():
    forest = Boosting(SQUARES, CUTS, 0, ALONE, values=100).grow(table(SQUARES), None, 50)
    leaves = [cells.leaves for cells in forest.cells]
    assert sum(leaves[:-1]) < 100 <= sum(leaves)
    assert sum(leaves) <= boosting.most_leaves(150, 1, SQUARES, 100)


@pytest.mark.parametrize("count", [1, 2, 1000, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, 1 << 18, 1 << 19, 1 << 20])
def test_sums_of_words_fit_in_64_bits(count):
    units, bits = bits_for(count)
    assert count * units < 1 << COUNT_BITS
    assert count * (1 << bits) <= 1 << (62 - COUNT_BITS)
    assert units >= 32
    assert bits >= 16


def test_nodes_know_their_depth(grown):
    nodes = grown[0].nodes
    steps = []
    for children in nodes.children:
        depth = {0: 0}
        for node, pair in enumerate(children.tolist()):
            for child in pair if node in depth else ():
                depth[child] = depth[node] + 1
        steps.append(max(depth.values()))
    assert nodes.depth == max(steps) > 3
    assert Nodes.none().depth == 0


def test_hidden_columns_have_no_cuts():
    X = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    assert TreesMap.ungrown(X, SQUARES, hidden=(1,)).counts.tolist() == [49, 0, 49]


def test_maps_come_back_from_their_parts(grown):
    map, _, X = grown
    for each in (map, TreesMap.ungrown(X, CLASSES)):
        again = map_from_parts(*each.to_parts())
        assert isinstance(again, TreesMap)
        assert again.loss == each.loss
        for name, array in each.to_parts()[1].items():
            assert again.to_parts()[1][name].tobytes() == array.tobytes()


def test_older_files_have_symmetric_trees_alone(grown):
    """Three arrays, and no places: they are read as they were written, and score as they did."""
    _, forest, X = grown
    plain = TreesMap.ungrown(X, SQUARES)
    cells = [Cells(each.columns % 5, np.zeros_like(each.cuts)) for each in forest.of_kind(symmetric=True)]
    old = Forest(forest.start, cells, forest.values[1::2])
    document, arrays = plain.grown(old).to_parts()
    assert set(arrays) == {"trees.cuts", "trees.columns", "trees.thresholds"}
    again = map_from_parts(document, arrays)
    scores = again.scorer(old.coefficients, old.start).scores(X, ALONE)
    np.testing.assert_allclose(scores, naive.scores_of(old, plain.codes(X))[-1], rtol=1e-6)


DAMAGE = {
    "no loss": ({"loss": None}, {}),
    "another loss": ({"loss": "huber"}, {}),
    "no cuts": ({}, {"trees.cuts": None}),
    "no columns": ({}, {"trees.columns": None}),
    "no thresholds": ({}, {"trees.thresholds": None}),
    "columns of another type": ({}, {"trees.columns": lambda a: a.astype(np.int64)}),
    "thresholds of another type": ({}, {"trees.thresholds": lambda a: a.astype(np.float64)}),
    "cuts of another type": ({}, {"trees.cuts": lambda a: a.astype(np.float64)}),
    "fewer cuts": ({}, {"trees.cuts": lambda a: a[:, :9]}),
    "cuts without columns": ({}, {"trees.cuts": lambda a: a.ravel()}),
    "one depth less": ({}, {"trees.columns": lambda a: a[:, :-1]}),
    "one tree less": ({}, {"trees.thresholds": lambda a: a[:-1]}),
    "no depth": ({}, {"trees.columns": lambda a: a[:, :0], "trees.thresholds": lambda a: a[:, :0]}),
    "depths of a bomb": ({}, {"trees.columns": lambda a: np.zeros((1, 40), np.int32),
                              "trees.thresholds": lambda a: np.zeros((1, 40), np.float32)}),
    "a column that is not there": ({}, {"trees.columns": lambda a: a + 5}),
    "a column below none": ({}, {"trees.columns": lambda a: a - 6}),
    "a threshold that is no number": ({}, {"trees.thresholds": lambda a: a * np.float32(np.nan)}),
    "no children": ({}, {"trees.children": None}),
    "no thresholds of nodes": ({}, {"trees.node_thresholds": None}),
    "children of another type": ({}, {"trees.children": lambda a: a.astype(np.int32)}),
    "fewer children": ({}, {"trees.children": lambda a: a[:, :-1]}),
    "a node that leads back": ({}, {"trees.children": lambda a: np.minimum(a, 1)}),
    "a leaf that is not there": ({}, {"trees.children": lambda a: a + np.uint16(a.shape[1])}),
    "a node in a column that is not there": ({}, {"trees.node_columns": lambda a: a + 5}),
    "a node's threshold that is no number": ({}, {"trees.node_thresholds": lambda a: a * np.float32(np.nan)}),
    "no places of levels": ({}, {"trees.level_group": lambda a: a, "trees.level_place": None}),
    "places of one level less": ({}, {"trees.level_place": lambda a: a[:-1]}),
    "places that no byte has": ({}, {"trees.level_place": lambda a: a + 255}),
    "a group more": ({}, {"trees.level_group": lambda a: a + (a >= 0)}),
    "a cut that is no number": ({}, {"trees.cuts": lambda a: a * np.float32(np.nan)}),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_parts_are_refused(grown, what):
    document, changes = DAMAGE[what]
    good, arrays = grown[0].to_parts()
    spoiled = {name: change(arrays[name]) if change else None for name, change in changes.items()}
    left = {name: array for name, array in {**arrays, **spoiled}.items() if array is not None}
    with pytest.raises(FileFormatError):
        map_from_parts({**good, **document}, left)


# -- rows as bytes


def coded_rows(share: float = 0.6, outputs: int = 2) -> CodedRows:
    X = np.random.default_rng(0).standard_normal((300, 4))
    scaling = fit_scaling("standard", X)
    map = TreesMap.ungrown(scaling.transform(X, np.float32), SQUARES)
    return CodedRows(
        Pipeline(None, scaling, map, TargetCoding.regression(np.full(outputs, -6.0), np.full(outputs, 6.0))),
        share,
        3,
        240,
    )


def blocks_of(cuts: list[int]):
    rng = np.random.default_rng(1)
    return make_blocks(rng.standard_normal((240, 4)), rng.standard_normal((240, 2)), cuts)


class TestLawsOfCodedRows(StatisticConformance):
    @pytest.fixture(params=[0.6, 1.0])
    def statistic(self, request):
        return coded_rows(request.param)

    @pytest.fixture
    def blocks(self):
        return blocks_of([0, 31, 120])

    def test_subtraction_may_come_before_addition(self, statistic, blocks):
        """Not of kept rows: what was never in cannot be taken away."""
        state = statistic.zero()
        with pytest.raises(MismatchError):
            state -= self.total(statistic, blocks[1:2])

    def test_size_is_known_beforehand(self, statistic, blocks):
        """With room for weights, which rows may have; which share of the rows is kept is up to their hashes."""
        arrays = self.total(statistic, blocks).arrays()
        size = sum(array.nbytes for array in arrays.values())
        assert size <= 1.3 * statistic.nbytes()
        assert size >= 0.4 * statistic.nbytes()


@given(st.lists(st.integers(0, 240), max_size=5), st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_any_split_summed_in_any_order_keeps_the_same_rows(cuts, random):
    statistic = coded_rows()
    whole = StatisticConformance.total(statistic, blocks_of([]))
    states = [StatisticConformance.total(statistic, [block]) for block in blocks_of(sorted(cuts))]
    random.shuffle(states)
    total = statistic.zero()
    for state in states:
        total += state
    assert_same(total, whole)
    for state in states[1:]:
        total -= state
    assert_same(total, states[0])


def test_rows_that_are_held_out_are_neither_kept_nor_counted():
    statistic, (block,) = coded_rows(1.0), blocks_of([])
    state, skip = statistic.zero(), np.arange(240) % 3 == 0
    statistic.update(state, block, ALONE, skip=skip)
    assert_same(state, StatisticConformance.total(statistic, [block.take(~skip)]))
    kept = state.kept.table()
    assert kept is not None
    assert (state.rows, len(kept)) == (160, 160)
    map, scaling = statistic.pipeline.map, statistic.pipeline.scaling
    assert np.array_equal(kept.X.T, map.codes(scaling.transform(block.X[~skip], np.float32)))
    assert np.array_equal(kept.targets, block.targets[~skip])
