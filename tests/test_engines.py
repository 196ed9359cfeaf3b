"""What a watcher and an engine say to each other: the local engine here, the cluster engine in test_dispatch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster_tools import Counts, CountsState

from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.engines.base import Next, Pass, showing
from streamrf.engines.local import LocalEngine
from streamrf.statistics.rowset import RowSet
from streamrf.support.errors import DataError
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE, Threads

ROWS = 1000


def counting(statistic: Counts | None = None) -> Pass[Any]:
    source = ArraySource(np.zeros((ROWS, 1)), np.zeros(ROWS), chunk_rows=100)
    return Pass.start(statistic or Counts(ROWS), source, span_rows=100)


@pytest.mark.parametrize("answer", [Next.CONTINUE, Next.COLLECT])
def test_all_rows_are_summed_unless_a_watcher_says_stop(answer: Next) -> None:
    job, seen = counting(), []

    def watch(job: Pass[Any], pending: int) -> Next:
        seen.append((job.done.count, pending))
        return answer

    assert (LocalEngine(ALONE).run(job, watch).counts == 1).all()
    assert seen == [(rows, 0) for rows in range(100, ROWS + 1, 100)]
    assert job.rows_left == 0


def test_a_stop_returns_at_once_and_a_second_run_does_the_rest() -> None:
    job = counting()
    state = LocalEngine(ALONE).run(job, lambda job, pending: Next.STOP if job.done.count >= 300 else Next.CONTINUE)
    assert job.done == RowSet([(0, 300)])
    assert state.counts.sum() == 300
    assert (LocalEngine(ALONE).run(job).counts == 1).all()


class Choosy(Counts):
    """Fails in the middle of a block."""

    def update(self, state: CountsState, block: Block, threads: Threads) -> None:
        if 555 in block.index:
            state.counts[block.index[:50]] += 1
            raise DataError("a label that nobody knows")
        super().update(state, block, threads)


def test_the_state_is_never_that_of_half_a_block() -> None:
    job = counting(Choosy(ROWS))
    with pytest.raises(DataError, match="nobody knows"):
        LocalEngine(ALONE).run(job)
    assert job.state.counts.sum() == job.done.count == 0


def test_progress_counts_what_is_summed_elsewhere() -> None:
    shown: list[int] = []

    class Shows(Reporter):
        def advanced(self, done: int, checkpoint_age: float | None) -> None:
            shown.append(done)

    job = counting()
    job.done.add_all(RowSet([(0, 200)]))
    assert showing(Shows())(job, 30) is Next.CONTINUE
    assert shown == [230]
