"""From a settled recipe to a feature map, and from a model file back to one."""

from __future__ import annotations

from typing import TypedDict, Unpack

import numpy as np

from streamrf.features.base import Arrays, FeatureMap
from streamrf.features.binning import map as _binning  # noqa: F401 (its import registers the map)
from streamrf.features.fourier import KINDS, UNTOLD, Draw, Learning, check, draw, draw_phases, kind_of
from streamrf.features.fourier.map import FourierMap
from streamrf.features.kernels import Kernel
from streamrf.features.precision import Precision
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.storage.safejson import JSON

SOBOL_COLUMNS = 256


class Given(TypedDict, total=False):
    """What kinds that are fitted to data may see; rows are scaled as the map's inputs will be."""

    sample: np.ndarray | None
    targets: np.ndarray | None
    learning: Learning
    metric: np.ndarray | None  # a factor for the inputs, which the frequencies then carry


def build_map(
    kind: str, kernel: Kernel, D: int, d: int, *, form: str, precision: Precision, seed: int, **given: Unpack[Given]
) -> FeatureMap:
    """D features of the kernel, of any kind: Fourier features, or what the kind itself draws."""
    if not kind_of(kind).whole:
        return build_fourier(kind, kernel, D, d, form=form, precision=precision, seed=seed, **given)
    if given.get("metric") is not None:
        raise InputError(f"a metric changes Fourier frequencies, and {kind} has none: use --metric none")
    check(kind, kernel)
    seen = given.get("sample"), given.get("targets"), given.get("learning", UNTOLD)
    map = kind_of(kind).draw(Draw(kind, kernel, D, d, seed, *seen, precision))
    assert isinstance(map, FeatureMap)
    return map


def build_fourier(
    kind: str, kernel: Kernel, D: int, d: int, *, form: str, precision: Precision, seed: int, **given: Unpack[Given]
) -> FourierMap:
    """D frequencies at random phases, or D / 2 with a cosine and a sine each."""
    count = D // 2 if form == "pairs" else D
    phases = np.zeros(count) if form == "pairs" else draw_phases(count, seed)
    return FourierMap(draw(kind, kernel, count, d, seed, **given), phases, form, precision)


def default_kind(kernel: Kernel, d: int) -> str:
    """Sobol points, which cover the spectrum most evenly; in many columns orthogonal directions, if there are any."""
    if d <= SOBOL_COLUMNS:
        return "sobol"
    return "orthogonal" if kernel.radial else "mc"


def map_from_parts(document: JSON, arrays: Arrays) -> FeatureMap:
    """The map that a model file describes. Only kinds that this process has defined are read: nothing is imported."""
    for what, name, known in (
        ("a map", document.get("kind"), FeatureMap.FAMILIES),
        ("frequencies", document.get("frequencies", "mc"), KINDS),
    ):
        if name not in known:
            raise FileFormatError(
                f"the model has {what} of kind {name!r}; this version knows {', '.join(known)}. If a package of yours"
                " defines it, import that package first"
            )
    return FeatureMap.FAMILIES[str(document["kind"])].from_parts(document, arrays)
