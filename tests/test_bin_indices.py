"""Bin indices kept between passes: whatever is kept, wherever, a read gives what was made from the rows."""

import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Span, work_spans
from streamrf.data.split import Split, chosen_rows
from streamrf.features.binning.index_cache import (
    DISK,
    MEMORY,
    MOST_RUNS,
    NOWHERE,
    BinIndexCache,
    BinIndexer,
    BinIndexSource,
    end_run,
    indexer_of_run,
    known_indexer,
)
from streamrf.features.binning.map import BinningMap, GammaWidths
from streamrf.features.binning.numbering import Numbering
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.statistics.bins import Bins, BinSums, RowIntegers
from streamrf.statistics.holdout import Holdout
from streamrf.statistics.targets import Weighting
from streamrf.support.errors import DataError, FileFormatError, InputError, MismatchError, StorageError
from streamrf.support.threads import ALONE, Threads

ROWS, GRIDS, BITS = 400, 5, 6
X = np.random.default_rng(0).standard_normal((ROWS, 3)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((ROWS, 2))
SCALING = fit_scaling("standard", X)
MAP = BinningMap.draw(GammaWidths(), 3, GRIDS, BITS, 0)
WANTED = MAP.words(SCALING.transform(X, np.float32))
CODING = TargetCoding.regression(Y.min(axis=0), Y.max(axis=0))
BAD = (7, 8, 200, 399)


def indexer(place=MEMORY, limit=10**9, nan="error"):
    return BinIndexer(SCALING, MAP, "a run", nan, place, limit)


def put(cache, span):
    index = np.arange(*span)
    cache.put(span, WANTED[:, index], Block(X[index], None, index))


def with_nan():
    spoiled = X.copy()
    spoiled[list(BAD), 1] = np.nan
    return spoiled


class Counting(ArraySource):
    """Counts the rows that are read."""

    rows_read = 0

    def read(self, span):
        self.rows_read += len(span)
        return super().read(span)


spans = st.lists(st.tuples(st.integers(0, ROWS - 1), st.integers(1, 150)), min_size=1, max_size=8)


@pytest.mark.parametrize("place", [MEMORY, DISK, NOWHERE])
@given(asked=spans, limit=st.sampled_from([0, 3000, 10**9]))
def test_any_reads_in_any_order_give_the_bin_indices_of_their_rows(place, asked, limit):
    source = BinIndexSource(Counting(X, Y), indexer(place, limit))
    for start, length in asked:
        stop = min(start + length, ROWS)
        block = source.read(Span(start, stop))
        assert (WANTED[:, start:stop] == block.X.T).all()
        assert (block.index == np.arange(start, stop)).all()
        assert block.y is None
    assert source.indexer.cache.bytes <= limit
    if limit == 10**9 and place != NOWHERE:
        assert source.source.rows_read == len({row for a, n in asked for row in range(a, min(a + n, ROWS))})
    source.indexer.cache.clear()


@pytest.mark.parametrize("place", [MEMORY, DISK, NOWHERE])
@given(asked=spans)
def test_rows_that_cannot_be_used_are_left_out_each_time(place, asked):
    source = BinIndexSource(ArraySource(with_nan(), Y), indexer(place, nan="drop"))
    for start, length in asked:
        rows = [row for row in range(start, min(start + length, ROWS)) if row not in BAD]
        block = source.read(Span(start, min(start + length, ROWS)))
        assert block.index.tolist() == rows
        assert (WANTED[:, rows] == block.X.T).all()
    source.indexer.cache.clear()


def test_rows_that_cannot_be_used_are_refused_otherwise():
    with pytest.raises(DataError, match="nan in column 1"):
        BinIndexSource(ArraySource(with_nan(), Y), indexer()).read(Span(0, 50))


def test_what_is_kept_in_memory_is_not_copied():
    source = BinIndexSource(ArraySource(X, Y), indexer())
    assert np.shares_memory(source.read(Span(0, 100)).X, source.read(Span(20, 60)).X)


def test_spans_that_overlap_what_is_kept_are_not_kept_twice():
    cache = BinIndexCache(MEMORY, 10**9)
    for span in (Span(10, 20), Span(0, 11), Span(15, 16), Span(19, 30), Span(0, 10), Span(20, 25)):
        put(cache, span)
    assert [(tuple(span), kept is not None) for span, kept in cache.parts(Span(5, 40))] == [
        ((5, 10), True), ((10, 20), True), ((20, 25), True), ((25, 40), False),
    ]  # fmt: skip


def test_a_full_disk_is_no_harm(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    source = BinIndexSource(ArraySource(X, Y), indexer(DISK))
    assert (WANTED[:, :100] == source.read(Span(0, 100)).X.T).all()
    assert source.indexer.cache.bytes == 0


def test_no_file_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = BinIndexSource(ArraySource(X, Y), indexer(DISK))
    source.read(Span(0, 100))
    assert source.indexer.cache.bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_source_of_bin_indices_has_no_targets():
    source = BinIndexSource(ArraySource(X, Y), indexer())
    assert not source.has_targets
    with pytest.raises(InputError, match="no targets"):
        source.read_targets(Span(0, 1))


# -- other processes


def test_in_a_process_there_is_one_indexer_for_a_run():
    first = pickle.loads(pickle.dumps(indexer()))
    put(first.cache, Span(0, 10))
    again = pickle.loads(pickle.dumps(indexer()))
    assert again is first is known_indexer("a run")
    end_run("a run")
    assert first.cache.bytes == 0
    with pytest.raises(MismatchError, match="does not know"):
        known_indexer("a run")


def test_old_runs_are_let_go_unless_someone_is_at_them():
    indexers = [indexer_of_run(SCALING, MAP, f"run {i}", "error", DISK, 10**6) for i in range(MOST_RUNS + 1)]
    for each in indexers:
        put(each.cache, Span(0, 10))
    in_use, forgotten = indexers[0].cache, weakref.ref(indexers[1])
    del each, indexers
    indexer_of_run(SCALING, MAP, "another", "error", DISK, 10**6)
    gc.collect()
    assert forgotten() is None
    ((_, kept),) = in_use.parts(Span(0, 10))
    assert np.array_equal(kept.indices(), WANTED[:, :10])
    for key in ("another", *(f"run {i}" for i in range(MOST_RUNS + 1))):
        end_run(key)


def test_a_source_of_bin_indices_is_opened_again_by_its_spec(tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    from streamrf.data.open import open_source

    mine = indexer_of_run(SCALING, MAP, "spec", "error", MEMORY, 10**6)
    source = BinIndexSource(open_source(str(tmp_path)), mine)
    there = open_source(**source.spec())
    assert there.indexer is mine
    assert there.fingerprint() == source.fingerprint()
    assert (there.read(Span(3, 9)).X == source.read(Span(3, 9)).X).all()
    end_run("spec")


# -- numbered bins


def counted(rows=range(ROWS)):
    counts = np.zeros((GRIDS, 2**BITS), np.int32)
    for p in range(GRIDS):
        np.add.at(counts[p], WANTED[p, list(rows)], 1)
    return counts


@pytest.mark.parametrize("place", [MEMORY, DISK, NOWHERE])
@pytest.mark.parametrize("first", [0, 150])
def test_numbered_bin_indices_are_the_same_from_the_cache_and_from_the_rows(place, first):
    """Wherever the first pass stopped keeping them; a wide grid takes two words."""
    plain = indexer_of_run(SCALING, MAP, "numbered", "error", place, 10**6)
    if first:
        plain.indices_to_keep(Block(X[:first], Y[:first], np.arange(first)), ALONE)
    mine = plain.numbered(Numbering.of(counted()))
    assert mine.cache.bytes == (0 if place != MEMORY else first * (2 * GRIDS + 8))
    source = BinIndexSource(ArraySource(X, Y), mine)
    wanted = mine.map.indices(SCALING.transform(X, np.float32))
    for p, row in enumerate(wanted):
        assert row.tolist() == (np.unique(WANTED[p], return_inverse=True)[1] + 1).tolist()
    assert (wanted == source.read(Span(0, ROWS)).X.T).all()
    assert (wanted[:, 100:200] == source.read(Span(100, 200)).X.T).all()
    again = pickle.loads(pickle.dumps(mine))
    assert again is mine
    end_run("numbered")
    with pytest.raises(MismatchError):
        known_indexer(mine.key)


def test_what_is_kept_is_read_without_a_copy():
    """A chunk that was read in several parts is kept in these, and read in them."""
    mine = indexer()
    source = BinIndexSource(ArraySource(X, Y), mine)
    for span in (Span(0, 150), Span(150, 300)):
        mine.indices_to_keep(Block(X[slice(*span)], Y[slice(*span)], np.arange(*span)), ALONE)
    assert list(source.chunks()) == [Span(0, ROWS)]
    put(mine.cache, Span(300, ROWS))
    assert list(work_spans(source, 150, 10**9)) == [Span(0, 150), Span(150, 300), Span(300, ROWS)]
    for span in work_spans(source, 150, 10**9):
        kept = next(mine.cache.parts(span))[1].indices()
        assert np.shares_memory(source.read(span).X, kept)


# -- the sums

HELD = chosen_rows(np.arange(ROWS), 0.2, 3)
SPLIT = Split(choose=0.2, seed=3)


@pytest.mark.parametrize("count", [1, 3])
@given(cuts=st.lists(st.integers(0, ROWS), max_size=4))
def test_first_sums_are_those_of_rows_one_by_one(count, cuts):
    statistic = Holdout(Bins(indexer(), CODING, ROWS), SPLIT, (0,))
    state = statistic.zero()
    edges = [0, *sorted(cuts), ROWS]
    with Threads(count) as threads:
        for a, b in itertools.pairwise(edges):
            statistic.update(state, Block(X[a:b], Y[a:b], np.arange(a, b)), threads)
    assert (state.sums.counts == counted()).all()  # of the rows held out too: their bins will have weights
    assert state.sums.rows == (~HELD).sum()
    assert (state.holdout.table().index == np.flatnonzero(HELD)).all()


CODES = (np.arange(ROWS) * 7) % 4
WEIGHTS = np.random.default_rng(4).uniform(0, 5, ROWS)
CLASSES = TargetCoding.classification((0, 1, 2, 3))


def sums_of(y, coding, weights=None):
    """A source of numbered bins, and what makes integers of its rows."""
    weighting = Weighting() if weights is None else Weighting(5.0, None, True)
    rows = RowIntegers(coding, weighting, ROWS)
    mine = BinIndexer(SCALING, MAP, "sums", "error", MEMORY, 10**6, SPLIT, rows)
    mine = mine.numbered(Numbering.of(counted()))
    source = ArraySource(X, y)
    if weights is not None:
        from streamrf.data.open import open_source

        source = open_source((X, y), sample_weight=weights)
    return BinIndexSource(source, mine), mine, rows


def dense(map):
    Z = np.zeros((ROWS, map.n_features), np.int64)
    for p, row in enumerate(map.indices(SCALING.transform(X, np.float32))):
        Z[np.arange(ROWS), map.starts[p] + row] = 1
    return Z * ~HELD[:, None]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", ["numbers", "classes"])
def test_sums_are_those_of_dense_matrices_without_the_rows_held_out(task, weighted):
    y, coding = (Y, CODING) if task == "numbers" else (CODES, CLASSES)
    source, mine, rows = sums_of(y, coding, WEIGHTS if weighted else None)
    outputs = np.array([1]) if task == "numbers" else np.array([1, 3])
    table = np.random.default_rng(2).integers(-(2**20), 2**20, (2, mine.map.n_features)).astype(np.int32)
    spare = np.full((3 + len(outputs), mine.map.n_features), 99, np.int64)
    statistic = BinSums(mine, rows, SPLIT, True, outputs, table, spare=[spare])
    state = statistic.zero()
    assert state.totals is spare
    for a, b in ((250, 400), (0, 250)):
        statistic.update(state, source.read(Span(a, b)), ALONE)
    Z, w = dense(mine.map), np.rint(WEIGHTS / rows.unit) * rows.unit if weighted else np.ones(ROWS)
    steps = coding.values(y)[:, outputs]
    if task == "numbers":
        steps = np.rint((steps - coding.offset[outputs]) / coding.step[outputs])
    wanted = np.concatenate([w[None], w * steps.T, w * (Z @ table.T).T])
    scale = rows.unit * np.exp2([0] + [rows.target_shift] * len(outputs) + [rows.score_shift] * 2)[:, None]
    close = 0 if not weighted else scale * ROWS
    assert (np.abs(state.totals * scale - wanted @ Z) <= close).all()
    assert (np.abs(state.whole * scale[:, 0] - wanted @ ~HELD) <= np.reshape(close, -1)).all()
    there = pickle.loads(pickle.dumps(statistic))
    assert (there.zero().totals == 0).all()
    assert (there.table == table).all()
    end_run("sums")


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_over_any_parts_are_the_same_bits(weighted):
    source, mine, rows = sums_of(Y, CODING, WEIGHTS if weighted else None)
    statistic = BinSums(mine, rows, SPLIT, True, np.arange(2))
    whole, parts = statistic.zero(), [statistic.zero(), statistic.zero()]
    statistic.update(whole, source.read(Span(0, ROWS)), ALONE)
    for state, span in zip(parts, (Span(0, 150), Span(150, ROWS)), strict=True):
        statistic.update(state, source.read(span), ALONE)
    both = statistic.load({name: array.copy() for name, array in parts[0].arrays().items()})
    both += statistic.load(parts[1].arrays())
    assert both.digest() == whole.digest()
    both -= parts[1]
    assert both.digest() == parts[0].digest()
    assert statistic.nbytes() == parts[0].totals.nbytes + parts[0].whole.nbytes
    end_run("sums")


def test_mixtures_of_classes_are_sums_with_signs():
    signs = np.array([[1, -1, -1, 1], [1, 1, -1, -1]])
    rows = RowIntegers(CLASSES, Weighting(), ROWS)
    coded, weights = rows(Block(X, CODES, np.arange(ROWS)))
    assert weights is None
    assert (rows.of_outputs(coded, np.arange(2), signs) == signs @ rows.of_outputs(coded, np.arange(4))).all()


@pytest.mark.parametrize(("rows", "regression"), [(10**3, True), (10**6, True), (2**31, True), (2**31, False)])
def test_the_sums_of_weighted_rows_have_room(rows, regression):
    coding = CODING if regression else CLASSES
    integers = RowIntegers(coding, Weighting(7.0, None, True), rows)
    heaviest = round(7.0 / integers.unit)
    assert 2**23 <= heaviest <= 2**24
    for largest, shift in ((2**31, integers.score_shift), (2**29 if regression else 1, integers.target_shift)):
        assert rows * ((heaviest * largest >> shift) + 1) < 2**63


def test_states_add_subtract_and_survive_as_arrays():
    statistic = Bins(indexer(), CODING, ROWS)
    parts = [statistic.zero(), statistic.zero()]
    statistic.update(parts[0], Block(X[:150], Y[:150], np.arange(150)), ALONE)
    statistic.update(parts[1], Block(X[150:], Y[150:], np.arange(150, ROWS)), ALONE)
    whole = statistic.load({name: array.copy() for name, array in parts[0].arrays().items()})
    whole += statistic.load(parts[1].arrays())
    assert (whole.counts == counted()).all()
    assert whole.rows == ROWS
    whole -= parts[1]
    assert whole.digest() == parts[0].digest()
    assert statistic.nbytes() == parts[0].counts.nbytes
    assert Bins(indexer(), CODING, 2**31).nbytes() == 2 * statistic.nbytes()


def test_sums_of_another_run_are_refused():
    statistic = Bins(indexer(), CODING, ROWS)
    arrays = statistic.zero().arrays()
    with pytest.raises(FileFormatError, match=r"bins\.counts"):
        statistic.load({**arrays, "bins.counts": arrays["bins.counts"][:2]})
    with pytest.raises(FileFormatError, match=r"bins\.counts"):
        statistic.load({**arrays, "bins.counts": arrays["bins.counts"].astype(np.int64)})


def test_bin_indices_on_disk_are_read_in_as_many_pieces_as_it_takes(monkeypatch):
    monkeypatch.setattr("streamrf.features.binning.index_cache.MOST_READ", 1000)
    kept = BinIndexCache(DISK, 10**9)
    put(kept, Span(0, ROWS))
    ((_, found),) = kept.parts(Span(0, ROWS))
    assert np.array_equal(found.indices(), WANTED)
    kept._file.truncate(WANTED.nbytes - 10)
    with pytest.raises(StorageError, match="10 bytes too early"):
        found.indices()
