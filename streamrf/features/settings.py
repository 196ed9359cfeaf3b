"""The settings that features heed: which map, how many features, which kernel, scaling and precision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamrf.data.screening import POLICIES
from streamrf.features.binning.map import BinningMap, width_law
from streamrf.features.blend import BlendMap
from streamrf.features.fourier import KINDS, Kind, kind_of
from streamrf.features.fourier.frequencies import check
from streamrf.features.fourier.map import FORMS
from streamrf.features.kernels import KERNELS, make_kernel
from streamrf.features.precision import PRECISIONS
from streamrf.features.targets import TASKS
from streamrf.features.trees.map import TreesMap
from streamrf.support.settings import AUTO, NONE, NOT_NEGATIVE, POSITIVE, Range, SelfDescribing, setting

# As maps: whatever the pilot finds best; random binning; trees; landmarks, binning and trees together. All others are
# Fourier.
ANY, BINNING, TREES, BLEND, LANDMARKS = "any", BinningMap.kind, TreesMap.kind, BlendMap.kind, "landmarks"
OWN = (BINNING, TREES, BLEND)  # that have no frequencies
METRICS = (AUTO, NONE, "diagonal", "full", "learned")
SCALINGS = (NONE, "standard", "minmax", "quantile", "log", "pca")
PREDICTION_LOSSES = ("squared", "hinge", "logistic")
DEFAULT_D = 2000
MAX_SUPERVISED = 5000  # frequencies
ITERATIONS = Range(1, 100_000)


def map_names() -> Iterable[str]:
    return (*KINDS, *OWN, ANY)


@dataclass(frozen=True)
class FeatureSettings(SelfDescribing):
    """What decides the features of a row."""

    D: int = setting(None, "Number of random Fourier features (2000 where these are used).", within=Range(1, 2_000_000))
    kernel: str = setting(
        AUTO, "auto, gaussian, laplacian, cauchy, matern12, matern32, matern52 or matern:NU; `map='binning'` has"
        " laplacian and bins:SHAPE.", some=lambda: (AUTO, *KERNELS),
    )  # fmt: skip
    length_scale: float | None = setting(None, "Width of the kernel; the pilot chooses it by default.", within=POSITIVE)
    map: str = setting(
        AUTO, "auto blends landmarks, random binning and trees; with `D` or another setting of Fourier features it"
        " draws those. The other names say how frequencies are drawn (mc to aligned) or learned (ekal-sample,"
        " ekal-cluster, supervised), or ask for landmarks (kernel values), binning (random grids), trees or a blend of"
        " the three.",
        choices=map_names,
    )  # fmt: skip
    grids: int | None = setting(
        None, "`map='binning'`: number of random grids (100 to 800, fewer for more rows).", metavar="P",
        within=Range(1, 100_000),
    )  # fmt: skip
    table_bits: int | None = setting(
        None, "`map='binning'`: each grid has 2^B bins (a quarter of the rows).", metavar="B", within=Range(1, 24)
    )
    form: str = setting(
        AUTO, "cos(w'x + b), or cos and sin pairs; auto is pairs for learned frequencies.", choices=lambda: FORMS
    )
    metric: str = setting(
        AUTO, "Learn which columns (diagonal) or directions (full) of the inputs matter; learned takes the best of"
        " none, diagonal and full; auto is learned for landmarks and none for Fourier features.",
        choices=lambda: METRICS,
    )  # fmt: skip
    landmarks: int | None = setting(
        None, "Learned maps: rows that are compared with one another at a step (50 to 256).", metavar="N",
        within=Range(2, 10_000),
    )  # fmt: skip
    learning_iterations: int | None = setting(
        None, "Learned maps: how often weights, or the predictor, are refitted.", metavar="T", within=ITERATIONS
    )
    learning_steps: int | None = setting(
        None, "Learned maps: steps of descent after each fit.", metavar="S", within=ITERATIONS
    )
    weight_decay: float | None = setting(None, "Learned maps: penalty on their weights (0.1).", within=NOT_NEGATIVE)
    eta: float | None = setting(
        None, "`map='supervised'`: share of the kernel's loss beside that of the prediction (0 or 10, tried).",
        within=NOT_NEGATIVE,
    )  # fmt: skip
    prediction_loss: str = setting(
        AUTO, "`map='supervised'`: what frequencies are learned by; auto goes with `loss`.",
        choices=lambda: PREDICTION_LOSSES,
    )  # fmt: skip
    scaling: str = setting(AUTO, "How columns are scaled before the map.", choices=lambda: SCALINGS)
    bits: str = setting(AUTO, "Precision of features: integers of so many bits, or floats.", choices=lambda: PRECISIONS)
    task: str = setting(AUTO, "Numbers or classes; told from the targets by default.", choices=lambda: TASKS)
    nan: str = setting(
        AUTO,
        "Rows that have NaN or infinite values; auto drops those without a target and refuses others.",
        choices=lambda: POLICIES,
        group="data",
    )
    seed: int = setting(0, "Another number draws other features, sample and hold-out rows.", within=NOT_NEGATIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.D is None:
            object.__setattr__(self, "D", DEFAULT_D)
        if self.settled_form == "pairs" and self.D % 2:
            self.refuse("D", "must be even, because features come in pairs")
        self._check_learning()
        if self.kernel != AUTO and self.map == BINNING:
            width_law(self.kernel)
        elif self.kernel != AUTO:
            kernel = make_kernel(self.kernel, length_scale=self.length_scale or 1.0)
            if self.map in (LANDMARKS, BLEND):
                check(LANDMARKS, kernel)

    @property
    def learns_from_targets(self) -> bool:
        """Whether features are made of the targets of a sample too."""
        kind = self.fourier_kind
        return self.settled_metric != NONE or (kind is not None and kind.targets)

    @property
    def settled_metric(self) -> str:
        """The metric, with ``auto`` replaced."""
        if self.metric != AUTO:
            return self.metric
        return "learned" if self.map in (ANY, BLEND, LANDMARKS) else NONE

    def _check_learning(self) -> None:
        kind = self.fourier_kind
        asked = self.metric not in (AUTO, NONE)
        if asked and kind is not None and not kind.takes_metric:
            self.refuse("metric", f"must be none: {self.map} has no matrix of frequencies")
        if asked and self.map in (BINNING, TREES):
            self.refuse("metric", f"must be none: {self.map} finds out by itself which columns matter")
        if self.map == "supervised":
            most = MAX_SUPERVISED * (2 if self.settled_form == "pairs" else 1)
            if most < self.D:
                self.refuse("D", f"must be at most {most:,} with `map='supervised'`")

    @property
    def is_float(self) -> bool:
        """Whether features were asked for that are not integers."""
        return self.bits.startswith("float")

    @property
    def settled_form(self) -> str:
        """The form, with ``auto`` replaced: learned frequencies are learned for a cosine and a sine each."""
        if self.form != AUTO:
            return self.form
        return "pairs" if self.fourier_kind is not None and self.fourier_kind.learned else "phase"

    @property
    def fourier_kind(self) -> Kind | None:
        """The kind of frequencies that was named, if one was."""
        return None if self.map in (AUTO, ANY, *OWN) else kind_of(self.map)
