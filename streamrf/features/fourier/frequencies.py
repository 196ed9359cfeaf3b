"""Frequencies of Fourier features, and the registry of the kinds of maps that can be asked for by name.

To add a kind, write a function from a ``Draw`` to ``Frequencies`` and decorate it::

    @Kind("toy", "one line that says what it is")
    def draw_toy(request: Draw) -> Frequencies:
        return evenly(request.kernel.sample(request.rng(), request.F, request.d))

The command line, recipes and model files then know the name, in every process that has imported the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from streamrf.features.base import Arrays, FeatureMap
from streamrf.features.fourier.hadamard import StructuredProjection
from streamrf.features.kernels import Kernel, make_kernel
from streamrf.features.precision import Precision, make_precision
from streamrf.features.scaling import apply_factor
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.storage.safejson import JSON


@dataclass(frozen=True)
class Learning:
    """Settings of the learning of a map; None leaves the choice to the map.

    ``landmarks``, ``iterations``, ``steps`` and ``decay`` are n, T, S and lambda of Li et al. (2019).
    """

    landmarks: int | None = None  # rows that are compared with one another at a step
    iterations: int | None = None  # times that weights (or the machine) are fitted again
    steps: int | None = None  # of descent after each fit
    decay: float | None = None  # of the weights, times the number of frequencies
    eta: float | None = None  # share of the kernel loss in a loss that has targets
    loss: str | None = None  # of the prediction: squared, hinge, logistic
    task: str | None = None  # regression or classification; inferred from the targets if not given


UNTOLD, DOUBLE = Learning(), make_precision("float64")


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream of this name: streams of one seed are independent, and adding one changes no other."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple(name.encode()))))


@dataclass(frozen=True)
class Draw:
    """A request for F frequencies of d columns; ``sample`` and ``targets`` are for kinds that are fitted to data."""

    kind: str
    kernel: Kernel
    F: int
    d: int
    seed: int
    sample: np.ndarray | None = None  # (n, d) rows, scaled as the map's inputs will be
    targets: np.ndarray | None = None  # (n,) or (n, k)
    learning: Learning = UNTOLD
    precision: Precision = DOUBLE  # of the features, for kinds that draw a whole map
    metric: np.ndarray | None = None  # a factor for the inputs, for those of them that take one

    def __post_init__(self) -> None:
        if self.F < 1 or self.d < 1:
            raise InputError(f"a map needs at least one frequency and one column, not {self.F} and {self.d}")
        if self.sample is not None and (self.sample.ndim != 2 or self.sample.shape[1] != self.d):
            raise InputError(f"the sample has shape {self.sample.shape}: it must have rows of {self.d} columns")
        if self.sample is not None and self.targets is not None and len(self.sample) != len(self.targets):
            raise InputError(f"the sample has {len(self.sample)} rows and {len(self.targets)} targets: give one each")

    def rng(self) -> np.random.Generator:
        """The stream that frequencies come from: the same for every kind, so that kinds can be compared."""
        return stream(self.seed, "frequencies")

    def rows(self) -> np.ndarray:
        """The sample, for a kind that needs one."""
        if self.sample is None or len(self.sample) < 2:
            raise InputError(
                f"{self.kind} frequencies are fitted to a sample of at least two rows: give one, or use mc"
            )
        return np.asarray(self.sample, dtype=np.float64)

    def labels(self) -> np.ndarray:
        """The targets, for a kind that needs them."""
        if self.targets is None:
            raise InputError(
                f"{self.kind} frequencies are fitted to targets and there are none: give them, or use weighted or"
                " ekal-cluster"
            )
        return self.targets


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Frequencies in the scaled input space: k(x, y) ~ sum_j weights_j cos(w_j'(x - y)).

    ``W`` is (F, d), unless the kind is structured: then it is None and ``factors`` multiplies by it.
    """

    W: np.ndarray | None
    weights: np.ndarray
    factors: StructuredProjection | None = None
    kind: str = ""  # ``draw`` sets it
    report: JSON = field(default_factory=dict)  # how learning went, where there was any; not kept in files

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def d(self) -> int:
        """Columns of the inputs."""
        return self.structure.d if self.W is None else self.W.shape[1]

    def dense(self) -> np.ndarray:
        """The frequencies as (F, d) float64, whatever the kind."""
        return self.structure.dense() if self.W is None else self.W

    @property
    def structure(self) -> StructuredProjection:
        """The factors, of frequencies that are not a matrix."""
        assert self.factors is not None
        return self.factors

    def stretched(self, factor: np.ndarray) -> Frequencies:
        """The same kernel of inputs multiplied by ``factor``: w'(Lx) = (Lw)'x, so that the metric is in W and nowhere
        else."""
        if self.W is None:
            raise InputError(
                f"{self.kind} frequencies are never a matrix, and a metric would make them one: use `metric='none'`, or"
                " another map, such as orthogonal"
            )
        return replace(self, W=apply_factor(self.W, factor))

    def arrays(self) -> Arrays:
        """Named arrays for a model file, from which ``from_arrays`` makes equal frequencies."""
        parts = self.structure.arrays() if self.W is None else {"W": self.W}
        return {"weights": self.weights, **parts}

    @classmethod
    def from_arrays(cls, kind: str, arrays: Arrays) -> Frequencies:
        """The frequencies that ``arrays()`` described; arrays that do not fit together are a FileFormatError."""
        if "weights" not in arrays:
            raise FileFormatError("the map's frequencies are damaged: array 'weights' is missing")
        weights, W = arrays["weights"], arrays.get("W")
        factors = StructuredProjection.from_arrays(arrays) if W is None else None
        shape = np.asarray(W).shape if factors is None else (factors.F, factors.d)
        if len(shape) != 2 or weights.shape != shape[:1]:
            raise FileFormatError(f"the map's frequencies are damaged: {shape[0]} of them and weights {weights.shape}")
        return cls(W, weights, factors, kind)


def uniform_weights(F: int) -> np.ndarray:
    """The weights of frequencies that all count the same."""
    return np.full(F, 1.0 / F)


def evenly(W: np.ndarray) -> Frequencies:
    """Dense frequencies that all count the same."""
    return Frequencies(W, uniform_weights(len(W)))


# -- kinds by name

KINDS: dict[str, Kind] = {}
"""Every kind that this process knows, by name: those of the package in the order of the documentation, then others."""

Drawn = TypeVar("Drawn", bound="Frequencies | FeatureMap")


@dataclass(eq=False)
class Kind:
    """A way of drawing frequencies (or a whole map), what it needs, and one line that says what it is.

    It decorates the function that draws, and is known by its name from then on.
    """

    name: str
    summary: str
    radial: bool = False  # only for kernels of the Euclidean distance
    second_moment: bool = False  # only where the spectral measure has one
    structured: bool = False  # never stores a d x F matrix
    sample: str = "ignored"  # ignored, helps, needed
    targets: bool = False  # needed
    rows: int = 2000  # of the sample, that it may see
    learned: bool = False  # frequencies are moved, for a cosine and a sine each
    whole: bool = False  # it draws a FeatureMap of F features itself, and no Fourier frequencies
    metric: bool = False  # a whole map that takes a metric; frequencies that are a matrix take any
    kernels: tuple[str, ...] = ()  # the only ones that it has, where these are not all
    tried: tuple[str, ...] = ()  # those of them that the pilot tries, where these are not the usual ones

    draw: Callable[[Draw], Frequencies | FeatureMap] = field(init=False)

    @property
    def takes_metric(self) -> bool:
        """Whether a learned metric can go into the map."""
        return self.metric or not (self.structured or self.whole)

    @property
    def slow(self) -> bool:
        """Whether it takes long to draw, so that trials are made with usual frequencies."""
        return self.sample == "needed" and not self.whole

    def kernels_among(self, names: Iterable[str]) -> list[str]:
        """The kernels that it can be drawn for."""
        return [name for name in names if refusal(self.name, make_kernel(name)) is None]

    def __call__(self, draw: Callable[[Draw], Drawn]) -> Callable[[Draw], Drawn]:
        """Register the function that draws this kind."""
        if self.name in KINDS and KINDS[self.name].draw.__qualname__ != draw.__qualname__:
            raise InputError(f"there are {self.name!r} frequencies already: choose another name")
        self.draw = draw
        KINDS[self.name] = self
        return draw


def kind_of(name: str) -> Kind:
    """What is known of a kind before it is drawn."""
    if name not in KINDS:
        raise InputError(f"there are no {name!r} frequencies: choose one of {', '.join(KINDS)}")
    return KINDS[name]


def check(kind: str, kernel: Kernel) -> None:
    """Refuse a pairing of kind and kernel that is not defined, before anything is drawn."""
    if reason := refusal(kind, kernel):
        raise InputError(reason)


def refusal(kind: str, kernel: Kernel) -> str | None:
    """Why there is no such pairing, if there is none."""
    known = kind_of(kind)
    if known.kernels and kernel.label not in known.kernels:
        return f"`map={kind!r}` has no {kernel.label} kernel: set `kernel` to one of {', '.join(known.kernels)}"
    if known.radial and not kernel.radial:
        return (
            f"{kind} frequencies need a kernel of the Euclidean distance, and the {kernel.label} kernel is a product "
            "over columns: use mc, halton, sobol, lattice or digital-net, or the gaussian or a matern kernel"
        )
    if known.second_moment and not np.isfinite(kernel.second_moment(1)):
        return (
            f"{kind} frequencies need a spectral measure with a second moment, and that of the {kernel.label} "
            "kernel has none: use sobol or digital-net, or the gaussian, cauchy, matern32 or matern52 kernel"
        )
    return None


def draw(
    kind: str, kernel: Kernel, F: int, d: int, seed: int, *, sample: np.ndarray | None = None,
    targets: np.ndarray | None = None, learning: Learning = UNTOLD, metric: np.ndarray | None = None,
) -> Frequencies:  # fmt: skip
    """F frequencies of d columns. ``sample`` and ``targets`` are rows scaled as the map's inputs will be.

    With a ``metric`` the kernel is that of inputs multiplied by it, and the frequencies carry it.
    """
    check(kind, kernel)
    if metric is not None and sample is not None:
        sample = apply_factor(sample, metric)
    drawn = kind_of(kind).draw(Draw(kind, kernel, F, d, seed, sample, targets, learning))
    if not isinstance(drawn, Frequencies):
        raise InputError(f"a map of kind {kind} has no Fourier frequencies: choose another kind")
    drawn = replace(drawn, kind=kind)
    return drawn if metric is None else drawn.stretched(metric)


def draw_phases(F: int, seed: int) -> np.ndarray:
    """F phases uniform in [0, 2 pi), independent of the frequencies of the same seed."""
    return stream(seed, "phases").uniform(0.0, 2.0 * np.pi, F)
