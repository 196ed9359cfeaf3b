"""The features: how many the data uses, and how well they stand for the kernel."""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.map import FourierMap
from streamrf.features.kernels import make_kernel
from streamrf.reports import curves, figures
from streamrf.reports.evidence import Evidence
from streamrf.reports.figures import Picture
from streamrf.reports.page import Section
from streamrf.solvers.ridge import NormalEquations


def spectrum(evidence: Evidence) -> Section:
    """Eigenvalues of the features' second moments and what each lambda leaves of them."""
    section = Section("spectrum", "Features in use")
    statistics, model = evidence.statistics, evidence.model
    if statistics is None or statistics.rows < 2:
        return section
    equations = NormalEquations.from_state(statistics.state, statistics.prepared.map, statistics.prepared.coding)
    found = curves.spectrum(equations, evidence.threads)
    top = found.values[0] if len(found.values) else 0.0
    if not top > 0:
        return section
    ridges = np.geomspace(max(top * 1e-12, 1e-13), top, 80)
    used, ridge = found.dimension(model.weights.ridge), model.weights.ridge
    fewer = "" if found.features == found.of else f" Computed from {found.features} of the {found.of} features."
    section.text = f"At λ = {ridge:.3g}, {used:,.0f} of {found.features:,} directions are in use.{fewer}"
    section.pictures = [
        Picture("eigenvalues", "Eigenvalues of the centred second moments: the faster they fall, the smoother the"
                " kernel is on this data.", figures.eigenvalues(found.values), f"Eigenvalues fall from {top:.3g}"),
        Picture("dimension", "Effective dimension, tr(S (S + λ)⁻¹). Near D at the chosen λ means that more features"
                " would help.", figures.dimensions(ridges, [found.dimension(r) for r in ridges], ridge, found.features),
                f"Effective dimension {used:.0f} of {found.features} at the chosen lambda"),
    ]  # fmt: skip
    return section


def kernel(evidence: Evidence) -> Section:
    """How well D features of this kind stand for the kernel."""
    section, model = Section("kernel", "Kernel approximation"), evidence.model
    width, name = model.recipe.length_scale, model.recipe.kernel
    if not isinstance(model.map, FourierMap) or width is None or model.recipe.metric != "none":
        return section
    if not curves.drawable(model.map.frequencies.kind):  # its kernel is another: fitted or learned
        return section
    X, what = _kernel_rows(evidence)
    kind, sizes = model.map.frequencies.kind, curves.kernel_sizes(model.map.n_features, model.map.form == "pairs")
    exact, seed = make_kernel(name, length_scale=width), model.recipe.seed
    shown = {f"{kind} (this model)": curves.kernel_errors(kind, exact, X, sizes, model.map, seed, evidence.threads)}
    if kind != "mc" and model.map.frequencies.W is not None:
        shown["mc, for comparison"] = curves.kernel_errors("mc", exact, X, sizes, model.map, seed, evidence.threads)
    section.text = (
        f"‖K̃ − K‖ / ‖K‖ of the {exact.label} kernel on {len(X)} {what}, for maps of this kind with fewer features."
    )
    section.pictures = [Picture(
        "kernel", "Independent draws fall as 1/√D; better ones faster.", figures.kernel_error(sizes, shown),
        f"Relative kernel error {next(iter(shown.values()))[-1]:.3g} at D = {sizes[-1]}",
    )]  # fmt: skip
    return section


def _kernel_rows(evidence: Evidence) -> tuple[np.ndarray, str]:
    scaling = evidence.model.scaling
    if evidence.rows is not None:
        return scaling.transform(evidence.rows.X[: curves.KERNEL_ROWS]).astype(np.float64), "rows of the data"
    rng = np.random.default_rng(0)
    return rng.standard_normal((curves.KERNEL_ROWS, scaling.n_outputs)), "Gaussian rows (no data was given)"
