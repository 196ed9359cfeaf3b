"""From a settled recipe to a feature map, and from a model file back to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamrf.features.base import FeatureMap
from streamrf.features.binning.map import BinningMap
from streamrf.features.fourier import draw, draw_phases
from streamrf.features.fourier.map import FourierMap
from streamrf.features.kernels import Kernel
from streamrf.features.learning import UNTOLD, Learning
from streamrf.features.precision import Precision
from streamrf.support.errors import FileFormatError

SOBOL_COLUMNS = 256


def build_fourier(
    kind: str, kernel: Kernel, D: int, d: int, *, form: str, precision: Precision, seed: int,
    sample: np.ndarray | None = None, targets: np.ndarray | None = None, learning: Learning = UNTOLD,
    metric: np.ndarray | None = None,
) -> FourierMap:  # fmt: skip
    """D features of the kernel: D frequencies at random phases, or D / 2 with a cosine and a sine each."""
    count = D // 2 if form == "pairs" else D
    given: dict[str, Any] = {"sample": sample, "targets": targets, "learning": learning, "metric": metric}
    frequencies = draw(kind, kernel, count, d, seed, **given)
    phases = np.zeros(count) if form == "pairs" else draw_phases(count, seed)
    return FourierMap(frequencies, phases, form, precision)


def default_kind(kernel: Kernel, d: int) -> str:
    """Sobol points, which cover the spectrum most evenly; in many columns orthogonal directions, if there are any."""
    if d <= SOBOL_COLUMNS:
        return "sobol"
    return "orthogonal" if kernel.radial else "mc"


def map_from_parts(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> FeatureMap:
    """The map a model file describes."""
    readers: dict[Any, Callable[..., FeatureMap]] = {
        FourierMap.kind: FourierMap.from_parts,
        BinningMap.kind: BinningMap.from_parts,
    }
    kind = document.get("kind")
    if kind not in readers:
        raise FileFormatError(f"the model has a map of kind {kind!r}; this version knows {', '.join(readers)}")
    return readers[kind](document, arrays)
