"""Adam (Kingma and Ba 2015) with steps in units of what moves, and a rate that falls to zero by a cosine."""

from __future__ import annotations

import math

import numpy as np

MEMORY, SQUARE_MEMORY = 0.9, 0.99


class Adam:
    """Moves an array against its gradients; the first step changes each entry by ``size``."""

    def __init__(self, size: float, total: int) -> None:
        self.size, self.total, self.taken = size, total, 0
        self._mean: np.ndarray | float = 0.0
        self._square: np.ndarray | float = 0.0

    def move(self, W: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """The array after one more step."""
        rate = self.size * 0.5 * (1.0 + math.cos(math.pi * min(1.0, self.taken / self.total)))
        self.taken += 1
        self._mean = MEMORY * self._mean + (1.0 - MEMORY) * slope
        self._square = SQUARE_MEMORY * self._square + (1.0 - SQUARE_MEMORY) * slope**2
        spread = np.sqrt(self._square / (1.0 - SQUARE_MEMORY**self.taken)) + np.finfo(W.dtype).tiny
        return W - W.dtype.type(rate / (1.0 - MEMORY**self.taken)) * self._mean / spread
