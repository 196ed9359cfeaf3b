"""From rows to slots, and the cache of this process beside it."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np

from streamrf.data.source import Block, Span
from streamrf.features.binning.index_cache import NOWHERE, SlotCache
from streamrf.features.binning.map import BinningMap
from streamrf.features.scaling import Scaling
from streamrf.support.errors import MismatchError
from streamrf.support.threads import Threads

MOST_RUNS = 2  # runs whose slots a worker keeps at a time

_lock = Lock()
_known: OrderedDict[str, SlotMaker] = OrderedDict()


class SlotMaker:
    """Scales and bins rows. In each process there is one for a run, known by the run's ``key``, with one cache."""

    def __init__(
        self, scaling: Scaling, map: BinningMap, key: str, nan: str = "error", place: str = NOWHERE, limit: int = 0
    ) -> None:
        self.scaling, self.map, self.key, self.nan = scaling, map, key, nan
        self.cache = SlotCache(place, limit)
        self._parts = scaling, map, key, nan, place, limit

    def make(self, X: np.ndarray, threads: Threads | None = None) -> np.ndarray:
        """Slots (P, n) of rows as they are stored."""
        return self.map.indices(self.scaling.transform(X, np.float32), threads=threads)

    def make_and_keep(self, block: Block, threads: Threads) -> np.ndarray:
        """Slots of a block; kept, if its rows have no gaps: with gaps, it is not known which rows are missing."""
        slots = self.make(block.X, threads)
        span = Span(int(block.index[0]), int(block.index[-1]) + 1)
        if len(span) == len(block):
            self.cache.put(span, slots)
        return slots

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is the one that is there already, with what it keeps."""
        return slot_maker, self._parts


def slot_maker(scaling: Scaling, map: BinningMap, key: str, *settings: Any) -> SlotMaker:
    """The one of a run in this process, made if need be."""
    with _lock:
        if key not in _known:
            _known[key] = SlotMaker(scaling, map, key, *settings)
        _known.move_to_end(key)
        while len(_known) > MOST_RUNS:  # whoever still uses it keeps it; nobody else does
            _known.popitem(last=False)
        return _known[key]


def maker_of(key: str) -> SlotMaker:
    """The one of a run that is known here: it comes with every statistic that asks for slots."""
    with _lock:
        if key not in _known:
            raise MismatchError("these slots belong to a run that this process does not know, or no longer")
        return _known[key]


def let_go(key: str) -> None:
    """The run is over."""
    with _lock:
        if key in _known:
            _known.pop(key).cache.clear()
