"""Sections on the features of a model: how many of them it uses, and how well they approximate the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.linalg as sla

from streamrf.features.fourier import kind_of
from streamrf.features.fourier.map import FourierMap
from streamrf.features.kernels import Kernel, make_kernel
from streamrf.features.pipeline import build_fourier
from streamrf.reports.bounds import relative_error
from streamrf.reports.curve import spread_columns
from streamrf.reports.evidence import Evidence
from streamrf.reports.page import COLOURS, Section, curve, legend, panel
from streamrf.reports.plots import scale_errors
from streamrf.solvers.ridge import NormalEquations
from streamrf.support.threads import Threads

MOST_EIGEN = 1200  # features whose eigenvalues are computed: about a second
KERNEL_ROWS = 400
LARGEST_D = 4096


# -- features in use


def spectrum(evidence: Evidence) -> Section:
    """Eigenvalues of the features' second moments, and the effective dimension at each lambda."""
    section, ridge = Section("spectrum", "Features in use"), evidence.model.weights.ridge
    statistics = evidence.statistics
    if statistics is None or statistics.rows < 2:
        return section
    equations = NormalEquations.from_state(statistics.state, statistics.prepared.map, statistics.prepared.coding)
    found = feature_spectrum(equations, evidence.threads)
    top = found.values[0] if len(found.values) else 0.0
    if not top > 0:
        return section
    used = found.dimension(ridge)
    fewer = "" if found.features == found.of else f" Computed from {found.features} of the {found.of} features."
    section.text = f"At λ = {ridge:.3g}, {used:,.0f} of {found.features:,} directions are in use.{fewer}"
    positive = found.values[found.values > top * 1e-16]
    falling, axes = curve(np.arange(1, len(positive) + 1), positive, ("number", "eigenvalue"), dots=False)
    axes.set(xscale="log", yscale="log")
    section.add(
        "eigenvalues", "Eigenvalues of the centred second moments. They fall faster for a kernel that is smoother on"
        " this data.", falling, f"Eigenvalues fall from {top:.3g}",
    )  # fmt: skip
    ridges = np.geomspace(max(top * 1e-12, 1e-13), top, 80)
    dimensions = [found.dimension(each) for each in ridges]
    rising, axes = curve(ridges, dimensions, ("λ", "effective dimension"), dots=False, chosen=ridge)
    axes.set(xscale="log", ylim=(0, found.features * 1.05))
    section.add(
        "dimension", "Effective dimension, tr(S (S + λ)⁻¹). If it is near D at the chosen λ, more features will help.",
        rising, f"Effective dimension {used:.0f} of {found.features} at the chosen lambda",
    )  # fmt: skip
    return section


@dataclass(frozen=True)
class FeatureSpectrum:
    """Eigenvalues of the centred second moments of z, largest first, of ``features`` of the model's ``of``."""

    values: np.ndarray
    features: int
    of: int

    def dimension(self, ridge: float) -> float:
        """tr(S (S + lambda)^-1): how many directions a lambda leaves in use."""
        return float((self.values / (self.values + ridge)).sum()) if ridge > 0 else float((self.values > 0).sum())


def feature_spectrum(equations: NormalEquations, threads: Threads, most: int = MOST_EIGEN) -> FeatureSpectrum:
    """Of all features, or of ``most`` that are evenly spread: these are a smaller map of the same kernel."""
    chosen = spread_columns(equations.size, most)
    matrix = second_moments(equations, chosen) * (equations.size / len(chosen))
    with threads.blas():
        values = sla.eigvalsh(matrix)
    return FeatureSpectrum(np.maximum(values[::-1], 0.0), len(chosen), equations.size)


def second_moments(equations: NormalEquations, columns: np.ndarray) -> np.ndarray:
    """The centred second moments of some features, both triangles."""
    layout, out = equations.layout, np.zeros((len(columns), len(columns)))
    for place, column in enumerate(columns):
        number = column // layout.panel_width
        panel, start = layout.panel(equations.totals, number), layout.starts[number]
        out[place:, place] = panel[column - start, columns[place:] - start]
    mean, amplitudes = equations.mean[columns], equations.amplitudes[columns]
    out = np.tril(out / equations.rows - np.outer(mean, mean)) * np.outer(amplitudes, amplitudes)
    return out + np.tril(out, -1).T


# -- kernel


def kernel(evidence: Evidence) -> Section:
    """How well D features of this kind approximate the kernel."""
    section, model, width = (
        Section("kernel", "Kernel approximation"),
        evidence.model,
        evidence.model.recipe.length_scale,
    )
    if not isinstance(model.map, FourierMap) or width is None or model.recipe.settled_metric != "none":
        return section
    own, kind, seed = model.map, model.map.frequencies.kind, model.recipe.seed
    if kind_of(kind).sample == "needed":  # fitted or learned: its kernel is another
        return section
    X, what = _kernel_rows(evidence)
    exact, sizes = (
        make_kernel(model.recipe.kernel, length_scale=width),
        kernel_sizes(own.n_features, own.form == "pairs"),
    )
    shown = {f"{kind} (this model)": kernel_errors(kind, exact, X, sizes, own, seed, evidence.threads)}
    if kind != "mc" and own.frequencies.W is not None:
        shown["independent draws (mc)"] = kernel_errors("mc", exact, X, sizes, own, seed, evidence.threads)
    figure, axes = panel("features D", "relative kernel error")
    for number, (name, errors) in enumerate(shown.items()):
        axes.plot(sizes, errors, "--" if number else "-", marker="o", markersize=4, color=COLOURS[number], label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
    axes.minorticks_off()
    scale_errors(axes)
    legend(axes)
    section.text = (
        f"‖K̃ − K‖ / ‖K‖ of the {exact.label} kernel on {len(X)} {what}, for maps of this kind with fewer features."
    )
    error = next(iter(shown.values()))[-1]
    section.add("kernel", "The error of independent draws falls as 1/√D, that of better ones faster.", figure,
                f"Relative kernel error {error:.3g} at D = {sizes[-1]}")  # fmt: skip
    return section


def _kernel_rows(evidence: Evidence) -> tuple[np.ndarray, str]:
    scaling = evidence.model.scaling
    if evidence.rows is not None:
        return scaling.transform(evidence.rows.X[:KERNEL_ROWS]).astype(np.float64), "rows of the data"
    rng = np.random.default_rng(0)
    return rng.standard_normal((KERNEL_ROWS, scaling.n_outputs)), "Gaussian rows (no data was given)"


def kernel_errors(
    kind: str, kernel: Kernel, X: np.ndarray, sizes: Sequence[int], own: FourierMap, seed: int, threads: Threads
) -> list[float]:
    """Relative errors of maps of this kind, otherwise like ``own``, with these numbers of features, on scaled rows."""
    K, rows, found = kernel(X), X.astype(own.precision.inputs), []
    for D in sizes:
        map = build_fourier(kind, kernel, D, X.shape[1], form=own.form, precision=own.precision, seed=seed)
        found.append(relative_error(map, rows, K, threads))
    return found


def kernel_sizes(D: int, even: bool) -> list[int]:
    """Numbers of features to measure: powers of two up to the model's own, which is the last."""
    top = min(D, LARGEST_D)
    sizes = [2**e for e in range(5, 13) if 2**e < top] + [top]
    return [size - size % 2 if even else size for size in sizes]
