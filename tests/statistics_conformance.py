"""The laws every statistic keeps, bit for bit: subclass with a ``statistic`` and a ``blocks`` fixture.

``blocks`` is a list of at least three blocks of different sizes, one of them empty. States are compared by all their
arrays, except after a subtraction, where the digest alone counts: what cannot be subtracted stays out of it.
"""

from itertools import pairwise

import numpy as np
import pytest

from streamrf.data.source import Block
from streamrf.support.errors import FileFormatError
from streamrf.support.threads import Threads


def joined(blocks: list[Block]) -> Block:
    y = None if blocks[0].y is None else np.concatenate([block.y for block in blocks])
    return Block(np.concatenate([b.X for b in blocks]), y, np.concatenate([b.index for b in blocks]))


def make_blocks(X: np.ndarray, y: np.ndarray | None, cuts: list[int]) -> list[Block]:
    """Consecutive blocks of a table, cut before the given rows."""
    whole = Block(X, y, np.arange(len(X)))
    edges = [0, *cuts, len(X)]
    return [whole.take(slice(*edge)) for edge in pairwise(edges)]


def assert_same(left, right):
    arrays, others = left.arrays(), right.arrays()
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        assert array.dtype == others[name].dtype, name
        assert array.tobytes() == others[name].tobytes(), name
    assert left.digest() == right.digest()


class StatisticConformance:
    @pytest.fixture
    def statistic(self):
        pytest.fail("a subclass gives the statistic")

    @pytest.fixture
    def blocks(self):
        pytest.fail("a subclass gives the blocks")

    @staticmethod
    def total(statistic, blocks, threads=1):
        state = statistic.zero()
        with Threads(threads) as pool:
            for block in blocks:
                statistic.update(state, block, pool)
        return state

    def test_rows_change_the_state(self, statistic, blocks):
        assert self.total(statistic, blocks).digest() != statistic.zero().digest()
        assert self.total(statistic, blocks).digest() != self.total(statistic, blocks[:1]).digest()

    def test_order_of_blocks_and_of_rows_is_free(self, statistic, blocks):
        whole = joined(blocks)
        shuffled = whole.take(np.random.default_rng(0).permutation(len(whole)))
        state = self.total(statistic, blocks)
        assert_same(self.total(statistic, blocks[::-1]), state)
        assert_same(self.total(statistic, [shuffled]), state)

    def test_split_into_blocks_is_free(self, statistic, blocks):
        whole = joined(blocks)
        state = self.total(statistic, blocks)
        for size in (1, 7, len(whole)):
            parts = [whole.take(slice(start, start + size)) for start in range(0, len(whole), size)]
            assert_same(self.total(statistic, parts), state)

    def test_number_of_threads_is_free(self, statistic, blocks):
        assert_same(self.total(statistic, blocks, threads=2), self.total(statistic, blocks))
        assert_same(self.total(statistic, [joined(blocks)], threads=3), self.total(statistic, blocks))

    def test_merge_is_the_joint_update(self, statistic, blocks):
        left, right = self.total(statistic, blocks[:1]), self.total(statistic, blocks[1:])
        kept = right.digest()
        left += right
        assert_same(left, self.total(statistic, blocks))
        assert right.digest() == kept

    def test_merge_commutes_and_has_a_zero(self, statistic, blocks):
        left, right = self.total(statistic, blocks[:1]), self.total(statistic, blocks[1:])
        right += left
        right += statistic.zero()
        assert_same(right, self.total(statistic, blocks))

    def test_subtraction_is_never_having_seen_the_rows(self, statistic, blocks):
        state = self.total(statistic, blocks)
        state -= self.total(statistic, blocks[1:])
        assert state.digest() == self.total(statistic, blocks[:1]).digest()
        state -= self.total(statistic, blocks[:1])
        assert state.digest() == statistic.zero().digest()

    def test_subtraction_may_come_before_addition(self, statistic, blocks):
        state = statistic.zero()
        state -= self.total(statistic, blocks[:1])
        with Threads(1) as pool:
            for block in blocks:
                statistic.update(state, block, pool)
        assert state.digest() == self.total(statistic, blocks[1:]).digest()

    def test_no_rows_change_nothing(self, statistic, blocks):
        state = self.total(statistic, [*blocks, blocks[0].take(slice(0, 0))])
        assert_same(state, self.total(statistic, blocks))

    def test_arrays_load_to_a_state_of_its_own(self, statistic, blocks):
        state = self.total(statistic, blocks[:1])
        stored = {name: array.copy() for name, array in state.arrays().items()}
        loaded = statistic.load(stored)
        assert_same(loaded, state)
        with Threads(1) as pool:
            for block in blocks[1:]:
                statistic.update(loaded, block, pool)
        assert_same(loaded, self.total(statistic, blocks))
        assert state.digest() == self.total(statistic, blocks[:1]).digest()

    def test_damaged_arrays_are_refused(self, statistic, blocks):
        arrays = self.total(statistic, blocks).arrays()
        for name, array in arrays.items():
            others = {key: value for key, value in arrays.items() if key != name}
            for damaged in (
                others,
                others | {name: np.concatenate([array, array])},
                others | {name: array.astype("c8")},
            ):
                with pytest.raises(FileFormatError):
                    statistic.load(damaged)

    def test_size_is_known_beforehand(self, statistic, blocks):
        arrays = self.total(statistic, blocks).arrays()
        assert abs(statistic.nbytes() - sum(array.nbytes for array in arrays.values())) <= 64
