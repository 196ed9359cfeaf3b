"""The recipe: every setting of a run, ``auto`` where the pilot chooses. A settled recipe has no ``auto`` left."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any

from streamrf.data.screening import POLICIES
from streamrf.features.binning.map import BinningMap, width_law
from streamrf.features.fourier import KINDS, Kind, Learning, kind_of
from streamrf.features.fourier.map import FORMS
from streamrf.features.kernels import make_kernel
from streamrf.features.precision import PRECISIONS
from streamrf.statistics.target_scan import TASKS
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.storage import safejson

AUTO, NONE = "auto", "none"
ANY, BINNING = "any", BinningMap.kind  # as maps: whatever the pilot finds best; random binning. All others are Fourier
METRICS = (NONE, "diagonal", "full", "learned")
PREDICTION_LOSSES = ("squared", "hinge", "logistic")
SCALINGS = ("none", "standard", "minmax", "quantile", "log", "pca")
SOLVERS = ("cholesky", "cg", "newton", "sgd")
PRECONDITIONERS = ("sample", "nystrom")
LOSS_SOLVERS = {  # which solvers can do each loss
    "squared": ("cholesky", "cg"), "hinge": ("sgd",), "squared-hinge": ("newton", "sgd"),
    "logistic": ("newton", "sgd"),
    "huber": ("newton",), "quantile": ("newton",),
}  # fmt: skip
LOSSES = tuple(LOSS_SOLVERS)
CLASS_WEIGHTS = ("balanced",)
_PREDICTION_LOSS_OF = {"hinge": "hinge", "squared-hinge": "hinge", "logistic": "logistic"}  # others: squared
MAX_FEATURES = 2_000_000
MAX_FOLDS = 100
MAX_EPOCHS, MAX_SHARDS = 10_000, 100_000
MAX_GRIDS, MAX_TABLE_BITS = 100_000, 24
MAX_LANDMARKS, MAX_ITERATIONS = 10_000, 100_000
MAX_SUPERVISED = 5000  # frequencies
_CHOICES = {
    "form": FORMS, "scaling": SCALINGS, "bits": PRECISIONS, "solver": SOLVERS,
    "preconditioner": PRECONDITIONERS,
    "prediction_loss": PREDICTION_LOSSES,
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What `streamrf train` is asked for; ``None`` and ``auto`` leave the choice to the pilot."""

    D: int = 2000
    kernel: str = AUTO
    length_scale: float | None = None
    map: str = AUTO
    grids: int | None = None  # of random binning
    table_bits: int | None = None  # slots of a grid, as a power of two
    form: str = AUTO  # pairs for learned frequencies, else phase
    metric: str = NONE  # learned: whichever of none, diagonal and full is best on unseen rows
    landmarks: int | None = None  # this and the next five: what the learning of frequencies may be told
    learning_iterations: int | None = None
    learning_steps: int | None = None
    weight_decay: float | None = None
    eta: float | None = None
    prediction_loss: str = AUTO
    scaling: str = AUTO
    bits: str = AUTO
    ridge: float | None = None
    solver: str = AUTO
    preconditioner: str = AUTO  # of the iterative solvers
    loss: str = "squared"
    quantile: float = 0.5  # the one that the quantile loss estimates
    huber_epsilon: float = 1.35  # residuals beyond so many of their robust deviations count linearly
    class_weight: str | None = None
    epochs: int | None = None  # of stochastic gradients
    shards: int | None = None  # parts of the rows that stochastic gradients visit side by side
    task: str = AUTO
    holdout: float | None = None  # share of rows that choose lambda; None: a tenth, at most 20,000 rows
    cv: int | None = None  # folds that choose lambda, instead of the hold-out rows
    nan: str = "error"
    pilot: str = AUTO  # auto, none
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("D", 1 <= self.D <= MAX_FEATURES, f"a number of features from 1 to {MAX_FEATURES:,}")
        for name, allowed in {**_CHOICES, "map": (*KINDS, BINNING, ANY)}.items():
            self._check(name, getattr(self, name) in (AUTO, *allowed), f"auto or one of {', '.join(allowed)}")
        self._check("D", self.settled_form == "phase" or self.D % 2 == 0, "an even number when features come in pairs")
        self._check_learning()
        self._check("task", self.task in TASKS, f"one of {', '.join(TASKS)}")
        self._check("nan", self.nan in POLICIES, f"one of {', '.join(POLICIES)}")
        self._check("pilot", self.pilot in (AUTO, "none"), "auto or none")
        self._check("length_scale", self.length_scale is None or 0 < self.length_scale < inf, "a positive number")
        self._check("ridge", self.ridge is None or 0 <= self.ridge < inf, "zero or a positive number")
        self._check("holdout", self.holdout is None or 0 <= self.holdout < 1, "a share from 0 to below 1")
        self._check("cv", self.cv is None or 2 <= self.cv <= MAX_FOLDS, f"a number of folds from 2 to {MAX_FOLDS}")
        self._check("seed", self.seed >= 0, "zero or a positive whole number")
        self._check_loss()
        self._check_binning()
        if self.kernel != AUTO and self.map != BINNING:
            make_kernel(self.kernel, length_scale=self.length_scale or 1.0)

    def _check_binning(self) -> None:
        self._check("grids", self.grids is None or 1 <= self.grids <= MAX_GRIDS, f"a number from 1 to {MAX_GRIDS:,}")
        bits = self.table_bits
        self._check("table_bits", bits is None or 1 <= bits <= MAX_TABLE_BITS, f"a number from 1 to {MAX_TABLE_BITS}")
        if self.map != BINNING:
            return
        if self.kernel != AUTO:
            width_law(self.kernel)
        if self.cv is not None:
            raise InputError("--cv chooses lambda for Fourier features: random binning is judged by --holdout rows")
        self._check("metric", self.metric == NONE, "none (the pilot of random binning finds a width for each column)")
        self._check("loss", self.loss == "squared", "squared (random binning has no other)")
        self._check("solver", self.solver in (AUTO, "cg"), "auto or cg (random binning has no other)")
        self._check("class_weight", self.class_weight is None, "nothing (random binning counts rows)")

    def _check_loss(self) -> None:
        self._check("loss", self.loss in LOSSES, f"one of {', '.join(LOSSES)}")
        able = LOSS_SOLVERS[self.loss]
        self._check("solver", self.solver in (AUTO, *able), f"auto or {' or '.join(able)} (the loss is {self.loss})")
        self._check("quantile", 0 < self.quantile < 1, "a number between 0 and 1")
        self._check("huber_epsilon", 0 < self.huber_epsilon < inf, "a positive number")
        weights = self.class_weight
        self._check("class_weight", weights is None or weights in CLASS_WEIGHTS, "balanced, or nothing")
        self._check("epochs", self.epochs is None or 1 <= self.epochs <= MAX_EPOCHS, f"1 to {MAX_EPOCHS:,}")
        self._check("shards", self.shards is None or 1 <= self.shards <= MAX_SHARDS, f"1 to {MAX_SHARDS:,}")
        self._check_descent(able[0] if self.solver == AUTO else self.solver)
        if self.map == BINNING:
            for name, plain in (("loss", "squared"), ("class_weight", None)):
                self._check(name, getattr(self, name) == plain, f"{plain or 'none'} (others are not of random binning)")
        if self.cv is not None and self.loss != "squared":
            raise InputError(f"--cv is for the squared loss: --loss {self.loss} is judged by --holdout rows")
        if self.cv is not None and self.solver not in (AUTO, "cholesky"):
            raise InputError(f"--cv goes with --solver cholesky, not with {self.solver}: use --holdout")

    def _check_descent(self, solver: str) -> None:
        """Refuse what only stochastic gradients would heed, where another solver will be taken."""
        if solver == "sgd":
            return
        able = ", ".join(loss for loss, solvers in LOSS_SOLVERS.items() if "sgd" in solvers)
        for name in ("epochs", "shards"):
            if (value := getattr(self, name)) is not None:
                raise InputError(
                    f"--{_option(name)} {value} is a setting of --solver sgd, which is for the losses {able}: leave it"
                    f" out, or ask for that solver (the loss is {self.loss})"
                )

    def _check_learning(self) -> None:
        self._check("metric", self.metric in METRICS, f"one of {', '.join(METRICS)}")
        dense = self.fourier_kind is None or not (self.fourier_kind.structured or self.fourier_kind.whole)
        self._check("metric", self.metric == NONE or dense, f"none ({self.map} has no matrix of frequencies)")
        self._check("metric", self.metric == NONE or self.map != ANY, "none (any compares maps as they are)")
        if self.map == "supervised":
            most = MAX_SUPERVISED * (2 if self.settled_form == "pairs" else 1)
            self._check("D", most >= self.D, f"at most {most:,} features, as learning from targets takes no more,")
        self._check(
            "landmarks", self.landmarks is None or 2 <= self.landmarks <= MAX_LANDMARKS, f"2 to {MAX_LANDMARKS:,}"
        )
        for name in ("learning_iterations", "learning_steps"):
            count = getattr(self, name)
            self._check(name, count is None or 1 <= count <= MAX_ITERATIONS, f"a number from 1 to {MAX_ITERATIONS:,}")
        for name in ("weight_decay", "eta"):
            value = getattr(self, name)
            self._check(name, value is None or 0 <= value < inf, "zero or a positive number")

    def _check(self, name: str, fine: bool, wanted: str) -> None:
        if not fine:
            raise InputError(f"--{_option(name)} {getattr(self, name)}: {wanted} is wanted")

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
        return None if self.map in (AUTO, ANY, BINNING) else kind_of(self.map)

    @property
    def can_be_binned(self) -> bool:
        """Whether random binning has all the other settings."""
        try:
            self.with_(map=BINNING)
        except InputError:
            return False
        return True

    def learning(self, task: str) -> Learning:
        """What the learning of frequencies is told."""
        loss = _PREDICTION_LOSS_OF.get(self.loss) if self.prediction_loss == AUTO else self.prediction_loss
        return Learning(
            self.landmarks, self.learning_iterations, self.learning_steps, self.weight_decay, self.eta, loss, task
        )

    def with_(self, **changes: Any) -> Recipe:
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Recipe:
        known = {field.name for field in fields(cls)}
        if unknown := set(document) - known:
            raise FileFormatError(
                f"the recipe has settings that this version does not know: {', '.join(sorted(unknown))}"
            )
        try:
            return cls(**document)
        except (InputError, TypeError) as error:
            raise FileFormatError(f"the recipe is damaged: {error}") from error

    def fingerprint(self) -> str:
        return hashlib.sha256(safejson.encode(self.to_json(), "the recipe")).hexdigest()[:16]


def _option(name: str) -> str:
    """What the command line calls a setting."""
    return {"ridge": "lambda", "shards": "parts"}.get(name, name.replace("_", "-"))
