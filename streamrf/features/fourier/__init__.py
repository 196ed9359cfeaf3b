"""Every way of drawing Fourier frequencies, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamrf.features.fourier.aligned import draw_aligned
from streamrf.features.fourier.frequencies import Draw, Frequencies, apply_factor, need_radial, stream
from streamrf.features.fourier.learned import ROWS as LEARNING_ROWS
from streamrf.features.fourier.learned import draw_ekal_cluster, draw_ekal_sample, draw_supervised
from streamrf.features.fourier.moments import draw_moment_matched, need_second_moment
from streamrf.features.fourier.monte_carlo import draw_mc
from streamrf.features.fourier.orthogonal import draw_orthogonal
from streamrf.features.fourier.projection import StructuredProjection
from streamrf.features.fourier.quasi import draw_digital_net, draw_halton, draw_lattice, draw_sobol
from streamrf.features.fourier.structured import draw_fastfood, draw_sorf
from streamrf.features.fourier.weighted import draw_weighted
from streamrf.features.kernels import Kernel
from streamrf.features.learning import UNTOLD, Learning
from streamrf.support.errors import InputError

__all__ = ["KINDS", "Frequencies", "Kind", "StructuredProjection", "check", "draw", "draw_phases", "kind_of", "stream"]


@dataclass(frozen=True)
class Kind:
    """A way of drawing frequencies, what it needs, and one line that says what it is."""

    draw: Callable[[Draw], Frequencies]
    summary: str
    radial: bool = False  # only for kernels of the Euclidean distance
    second_moment: bool = False  # only where the spectral measure has one
    structured: bool = False  # never stores a d x F matrix
    sample: str = "ignored"  # ignored, helps, needed
    targets: bool = False  # needed
    rows: int = 2000  # of the sample, that it may look at
    learned: bool = False  # frequencies are moved, for a cosine and a sine each


_KINDS = {
    "mc": Kind(draw_mc, "independent draws of the spectral measure (Rahimi and Recht)"),
    "orthogonal": Kind(draw_orthogonal, "blocks of orthogonal directions", radial=True),
    "sorf": Kind(draw_sorf, "orthogonal by Hadamard transforms and signs, fast", radial=True, structured=True),
    "fastfood": Kind(draw_fastfood, "Hadamard transforms and a Gaussian diagonal, fast", radial=True, structured=True),
    "halton": Kind(draw_halton, "scrambled Halton sequence", sample="helps"),
    "sobol": Kind(draw_sobol, "scrambled Sobol sequence", sample="helps"),
    "lattice": Kind(draw_lattice, "shifted rank-1 lattice, built for F and d", sample="helps"),
    "digital-net": Kind(draw_digital_net, "shifted digital net, built for F and d", sample="helps"),
    "moment-matched": Kind(
        draw_moment_matched, "mean and covariance of the spectral measure, exactly", second_moment=True
    ),
    "weighted": Kind(draw_weighted, "weights fitted to the kernel on a sample", sample="needed"),
    "aligned": Kind(draw_aligned, "draws and weights aligned with the targets", sample="needed", targets=True),
    "ekal-sample": Kind(
        draw_ekal_sample, "frequencies and weights learned from random rows", sample="needed", rows=LEARNING_ROWS,
        learned=True,
    ),
    "ekal-cluster": Kind(
        draw_ekal_cluster, "frequencies and weights learned from rows of clusters", sample="needed",
        rows=LEARNING_ROWS, learned=True,
    ),
    "supervised": Kind(
        draw_supervised, "frequencies learned from rows and targets", sample="needed", targets=True,
        rows=LEARNING_ROWS, learned=True,
    ),
}  # fmt: skip
KINDS = tuple(_KINDS)


def kind_of(name: str) -> Kind:
    """What is known of a kind before it is drawn."""
    if name not in _KINDS:
        raise InputError(f"there are no {name!r} frequencies: choose one of {', '.join(KINDS)}")
    return _KINDS[name]


def check(kind: str, kernel: Kernel) -> None:
    """Refuse a pairing of kind and kernel that is not defined, before anything is drawn."""
    known = kind_of(kind)
    if known.radial:
        need_radial(kind, kernel)
    if known.second_moment:
        need_second_moment(kernel)


def draw(
    kind: str,
    kernel: Kernel,
    F: int,
    d: int,
    seed: int,
    *,
    sample: np.ndarray | None = None,
    targets: np.ndarray | None = None,
    learning: Learning = UNTOLD,
    metric: np.ndarray | None = None,
) -> Frequencies:
    """F frequencies of d columns. ``sample`` and ``targets`` are rows scaled as the map's inputs will be.

    With a ``metric`` the kernel is that of inputs multiplied by it, and the frequencies carry it.
    """
    check(kind, kernel)
    if metric is not None and sample is not None:
        sample = apply_factor(sample, metric)
    drawn = kind_of(kind).draw(Draw(kernel, F, d, seed, sample, targets, learning))
    return drawn if metric is None else drawn.stretched(metric)


def draw_phases(F: int, seed: int) -> np.ndarray:
    """F phases uniform in [0, 2 pi), independent of the frequencies of the same seed."""
    return stream(seed, "phases").uniform(0.0, 2.0 * np.pi, F)
