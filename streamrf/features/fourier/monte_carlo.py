"""Independent draws of the spectral measure (Rahimi and Recht 2007)."""

from __future__ import annotations

from streamrf.features.fourier.frequencies import Draw, Frequencies, evenly


def draw_mc(request: Draw) -> Frequencies:
    return evenly(request.kernel.sample(request.rng(), request.F, request.d), "mc")
