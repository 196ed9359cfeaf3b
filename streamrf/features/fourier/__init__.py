"""Random Fourier features: frequencies of many kinds, and the map that makes cosines of them.

Importing a module registers the kinds that it defines; lists show them in this order.
"""

# ruff: noqa: I001

from streamrf.features.fourier.frequencies import (
    KINDS, UNTOLD, Draw, Frequencies, Kind, Learning, check, draw, draw_phases, evenly, kind_of, stream,
)  # fmt: skip
from streamrf.features.fourier import monte_carlo, quasi, fitted, landmarks

__all__ = [
    "KINDS", "UNTOLD", "Draw", "Frequencies", "Kind", "Learning", "check", "draw", "draw_phases", "evenly",
    "fitted", "kind_of", "landmarks", "monte_carlo", "quasi", "stream",
]  # fmt: skip
