"""The pilot's sample: random, the same for any chunking, and no row twice."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource
from streamrf.data.screening import draw_sample, random_runs
from streamrf.support.errors import DataError, StorageError

N = 10_000
X = np.arange(N, dtype=np.float64)[:, None]


@pytest.mark.parametrize("chunk", [1, 7, 333, 10_000])
def test_the_sample_does_not_depend_on_the_chunks(chunk):
    one, other = (draw_sample(ArraySource(X, X[:, 0], chunk_rows=c), 1000, 3, "error") for c in (500, chunk))
    assert np.array_equal(one.index, other.index)
    assert np.array_equal(one.X[:, 0], one.index)


def test_rows_come_from_all_over_the_table_in_random_order():
    sample = draw_sample(ArraySource(X, X[:, 0], chunk_rows=100), 1000, 0, "error")
    assert len(set(sample.index.tolist())) == len(sample) == pytest.approx(1000, abs=64)
    assert np.histogram(sample.index, bins=10, range=(0, N))[0].min() > 50
    assert not np.array_equal(np.sort(sample.index), sample.index)


@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(0, 5))
def test_runs_are_disjoint_in_order_and_within_the_table(n_rows, rows, seed):
    runs = random_runs(n_rows, rows, np.random.default_rng(seed))
    assert all(a.stop <= b.start for a, b in pairwise(runs))
    assert runs[0].start >= 0
    assert runs[-1].stop <= n_rows
    assert min(n_rows, rows) >= sum(map(len, runs)) > min(n_rows, rows) / 2


class FailsOnce(ArraySource):
    """Each span cannot be read at first."""

    def read(self, span):
        self.seen = getattr(self, "seen", set())
        if span not in self.seen:
            self.seen.add(span)
            raise StorageError("the network is away")
        return super().read(span)


def test_a_read_that_fails_for_a_moment_is_tried_again(monkeypatch):
    monkeypatch.setattr("streamrf.data.locations.WAITS", (0.0,))
    one, other = (draw_sample(kind(X, X[:, 0], chunk_rows=500), 1000, 3, "error") for kind in (ArraySource, FailsOnce))
    assert np.array_equal(one.index, other.index)


def test_a_sample_without_usable_rows_says_so():
    with pytest.raises(DataError, match="no usable rows in a sample of 50"):
        draw_sample(ArraySource(np.full((50, 2), np.nan), np.zeros(50)), 100, 0, "drop")


def test_a_sorted_table_is_sampled_row_by_row():
    sample = draw_sample(ArraySource(X, X[:, 0], chunk_rows=100), 1000, 0, "error")
    assert len(sample) == 1000
    assert np.diff(np.sort(sample.index)).max() <= 2 * N // 1000  # one row of each of 1,000 equal parts


class WholeChunks(ArraySource):
    """Parts of a chunk cannot be read, as in most files; remembers what was."""

    def read(self, span):
        self.spans = [*getattr(self, "spans", []), span]
        return super().read(span)

    def has_partial_reads(self):
        return False


def test_a_table_too_large_to_be_read_whole_is_sampled_in_runs(monkeypatch):
    monkeypatch.setattr("streamrf.data.screening.SPREAD_BYTES", 1000)
    source = WholeChunks(X, X[:, 0], chunk_rows=10)
    sample = draw_sample(source, 1000, 0, "error")
    assert np.diff(np.sort(sample.index)).max() > 20
    assert len(sample) == 3 * 256
    assert sum(map(len, source.spans)) <= 2 * 10 * 256


def test_weights_come_with_the_rows_and_rows_without_any_do_not():
    weights = np.where(X[:, 0] % 10 == 0, 0.5 + X[:, 0], 0.0)
    sample = draw_sample(open_source((X, X[:, 0]), sample_weight=weights), 500, 0, "error")
    assert np.array_equal(sample.weights, 0.5 + sample.X[:, 0])
    assert len(sample) > 400  # more rows are drawn where most weigh nothing


def test_a_sample_in_which_nothing_weighs_anything_says_so():
    with pytest.raises(DataError, match="no usable rows in a sample of 50: every one has NaN or no weight"):
        draw_sample(open_source((X[:50], X[:50, 0]), sample_weight=np.zeros(50)), 100, 0, "drop")
