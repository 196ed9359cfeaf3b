"""Predictions of random binning: each row finds its slots, and adds up what their tables hold."""

from __future__ import annotations

import numpy as np

from streamrf.features.binning.map import BinningMap
from streamrf.features.binning.normal import scores
from streamrf.support.threads import Threads

BLOCK_ROWS = 32_768  # rows whose slots are alive at once


class BinningScorer:
    """Tables of float32 weights; a row's score is summed in float64, grid after grid, whatever the block."""

    def __init__(self, map: BinningMap, coefficients: np.ndarray, intercept: np.ndarray) -> None:
        self.map = map
        self.intercept = np.asarray(intercept, np.float64)
        tables = np.ascontiguousarray(coefficients.T, np.float32)
        self.table = tables.reshape(len(self.intercept), map.grids, map.slots)

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64 scores of scaled inputs."""
        out = np.empty((len(X), len(self.intercept)))
        for start in range(0, len(X), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            self.score_slots(self.map.indices(X[rows], threads=threads), out[rows], threads)
        return out

    def score_slots(self, indices: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        """Scores (n, outputs) of rows whose slots (P, n) are known."""
        np.add(scores(indices, self.table, threads).T, self.intercept, out=out)
