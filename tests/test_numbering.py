"""Numbers for bins that have rows: those of a naive count, the same predictions, and little memory."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from streamrf.features.binning.layout import Layout, words_of
from streamrf.features.binning.map import BinningMap, GammaWidths
from streamrf.features.binning.normal import add_counts, add_values, scores
from streamrf.features.binning.numbering import Numbering
from streamrf.features.pipeline import map_from_parts
from streamrf.support.errors import DataError, FileFormatError
from streamrf.support.threads import ALONE

X = np.random.default_rng(0).standard_normal((900, 3)).astype(np.float32)


@given(counts=arrays.arrays(np.int32, st.tuples(st.integers(1, 4), st.integers(2, 300)), elements=st.integers(0, 2)))
def test_numbers_are_those_of_a_naive_count(counts):
    if not counts.any():
        with pytest.raises(DataError, match="at least one row"):
            Numbering.of(counts)
        return
    numbering = Numbering.of(counts)
    slots = np.tile(np.arange(counts.shape[1], dtype=np.uint32), (len(counts), 1))
    numbering.number(slots)
    naive = [[(row[: i + 1] > 0).sum() if row[i] else 0 for i in range(len(row))] for row in counts]
    assert slots.tolist() == naive
    assert numbering.occupied.tolist() == (counts > 0).sum(axis=1).tolist()
    assert numbering.starts.tolist() == np.cumsum([0, *((counts > 0).sum(axis=1) + 1)]).tolist()
    numbering.check(*counts.shape)
    values = np.arange(numbering.starts[-1])[None]
    wanted = [[numbering.starts[p] + n for n in row] for p, row in enumerate(naive)]
    assert numbering.expand(values, counts.shape[1]).tolist() == [wanted]


def test_bits_of_other_grids_are_refused():
    numbering = Numbering.of(np.ones((3, 70), np.int32))
    for grids, slots in ((2, 70), (3, 200), (3, 65)):
        with pytest.raises(FileFormatError):
            numbering.check(grids, slots)
    with pytest.raises(FileFormatError):
        Numbering(numbering.words.astype(np.int64)).check(3, 70)


@pytest.fixture(params=[16, 1 << 16])
def maps(request, monkeypatch):
    """Plain and numbered grids; with 16 bins a word, most of them take two."""
    monkeypatch.setattr("streamrf.features.binning.layout.WORD_BINS", request.param)
    plain = BinningMap.draw(GammaWidths(), 3, 6, 9, 2)
    counts = np.zeros((6, 512), np.int32)
    add_counts(plain.words(X), counts, ALONE, layout=plain.layout)
    assert (counts == [np.bincount(row, minlength=512) for row in plain.indices(X)]).all()
    return plain, BinningMap(plain.widths, plain.shifts, plain.bits, plain.seed, Numbering.of(counts))


def test_words_hold_bin_indices(maps):
    for map in maps:
        words = map.words(X)
        assert words.dtype == np.uint16
        assert (map.layout.unpack(words) == map.indices(X)).all()
    plain, numbered = maps
    assert (numbered.renumbered(plain.words(X), plain) == numbered.words(X)).all()
    assert numbered.n_features < plain.n_features / 2


def test_numbered_bins_have_the_scores_of_plain_ones_and_new_rows_those_of_none(maps):
    plain, numbered = maps
    rng = np.random.default_rng(1)
    values = rng.standard_normal((2, numbered.n_features)).astype(np.float32)
    values[:, numbered.starts[:-1]] = 0
    table = numbered.expanded(values)
    new = rng.standard_normal((500, 3)).astype(np.float32) * 2
    for rows in (X, new):
        wanted = scores(plain.indices(rows), table, ALONE)
        assert (scores(numbered.words(rows), values, ALONE, layout=numbered.layout) == wanted).all()
        got = numbered.scorer(values.T, np.zeros(2)).scores(rows, ALONE)
        assert (got == wanted.T).all()
    totals, whole = np.zeros((1, numbered.n_features), np.int64), np.zeros((1, 6, 512), np.int64)
    steps = rng.integers(-9, 9, (1, len(X)))
    add_values(numbered.words(X), steps, totals, ALONE, layout=numbered.layout)
    add_values(plain.indices(X), steps, whole, ALONE)
    assert (numbered.expanded(totals) == whole).all()


def test_numbered_grids_survive_files_and_processes(maps):
    _, numbered = maps
    for again in (map_from_parts(*numbered.to_parts()), pickle.loads(pickle.dumps(numbered))):
        assert (again.indices(X) == numbered.indices(X)).all()
        assert again.n_features == numbered.n_features
    document, stored = numbered.to_parts()
    with pytest.raises(FileFormatError, match="occupied slots"):
        map_from_parts(document, {**stored, "binning.occupied": stored["binning.occupied"][:3]})


def test_grids_take_a_word_and_share_others_for_what_it_cannot_hold():
    bins = [10, 1 << 16, (1 << 16) + 1, 3, 10**6, 1 << 30, 1 << 17]
    layout = Layout.packed(np.cumsum([0, *bins]))
    assert layout.high[:, 0].tolist() == [-1, -1, 7, -1, 7, 8, 8]
    assert layout.rows == 9
    rng = np.random.default_rng(0)
    indices = np.array([[0, each - 1, *rng.integers(0, each, 50)] for each in bins], np.uint32)
    words = np.full((9, 52), 0xFFFF, np.uint16)
    layout.pack(indices, words)
    assert (layout.unpack(words) == indices).all()
    assert words_of(100, 1 << 17) == 100 + 100 // 8 + 1
    assert words_of(100, 1 << 15) == 100


@pytest.mark.parametrize("bins", [[1 << 17] * 20, [1 << 16, 70_000, 10**6, 5, 300_000]])
def test_sums_over_shared_words_are_those_over_whole_indices(bins):
    layout = Layout.packed(np.cumsum([0, *bins]))
    rng = np.random.default_rng(0)
    indices = np.array([rng.integers(0, each, 700) for each in bins], np.uint32)
    words = np.empty((layout.rows, 700), np.uint16)
    layout.pack(indices, words)
    places = indices + layout.starts[:-1, None]
    table, values = rng.integers(-9, 9, (2, layout.starts[-1])), rng.integers(-9, 9, (2, 700))
    assert (scores(words, table, ALONE, layout=layout) == table[:, places].sum(axis=1)).all()
    totals, counts = np.zeros_like(table), np.zeros(layout.starts[-1], np.int32)
    add_values(words, values, totals, ALONE, layout=layout)
    add_counts(words, counts, ALONE, layout=layout)
    assert (counts == np.bincount(places.reshape(-1), minlength=len(counts))).all()
    for row, sums in zip(values, totals, strict=True):
        assert (sums == np.bincount(places.reshape(-1), np.tile(row, len(bins)), len(counts))).all()


def test_values_beyond_32_bits_are_summed_whole():
    layout, words = Layout.packed(np.array([0, 3])), np.array([[0, 2, 2]], np.uint16)
    for values in ([[2**31 - 1, -(2**31), 1]], [[2**31, 5, 7]], [[1, -(2**40), 3]]):
        totals = np.zeros((1, 3), np.int64)
        add_values(words, np.array(values), totals, ALONE, layout=layout)
        assert totals.tolist() == [[values[0][0], 0, values[0][1] + values[0][2]]]
