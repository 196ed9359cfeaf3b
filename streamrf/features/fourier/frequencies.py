"""What every way of drawing frequencies takes and gives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamrf.features.fourier.projection import StructuredProjection
from streamrf.features.kernels import Kernel
from streamrf.features.learning import UNTOLD, Learning
from streamrf.support.errors import FileFormatError, InputError


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream of this name: streams of one seed are independent, and adding one changes no other."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple(name.encode()))))


@dataclass(frozen=True)
class Draw:
    """A request for F frequencies of d columns; ``sample`` and ``targets`` are for kinds that look at data."""

    kernel: Kernel
    F: int
    d: int
    seed: int
    sample: np.ndarray | None = None  # (n, d) rows, scaled as the map's inputs will be
    targets: np.ndarray | None = None  # (n,) or (n, k)
    learning: Learning = UNTOLD

    def __post_init__(self) -> None:
        if self.F < 1 or self.d < 1:
            raise InputError(f"a map needs at least one frequency and one column, not {self.F} and {self.d}")
        if self.sample is not None and (self.sample.ndim != 2 or self.sample.shape[1] != self.d):
            raise InputError(f"the sample has shape {self.sample.shape}: rows of {self.d} columns are wanted")
        if self.sample is not None and self.targets is not None and len(self.sample) != len(self.targets):
            raise InputError(f"the sample has {len(self.sample)} rows and {len(self.targets)} targets: give one each")

    def rng(self) -> np.random.Generator:
        """The stream that frequencies come from: the same for every kind, so that kinds can be compared."""
        return stream(self.seed, "frequencies")

    def rows(self, kind: str) -> np.ndarray:
        """The sample, which this kind cannot do without."""
        if self.sample is None or len(self.sample) < 2:
            raise InputError(f"{kind} frequencies are fitted to a sample of at least two rows: give one, or use mc")
        return np.asarray(self.sample, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Frequencies:
    """Frequencies in the scaled input space: k(x, y) ~ sum_j weights_j cos(w_j'(x - y)).

    ``W`` is (F, d), unless the kind is structured: then it is None and ``factors`` multiplies by it.
    """

    W: np.ndarray | None
    weights: np.ndarray
    kind: str
    factors: StructuredProjection | None = None
    report: dict[str, Any] = field(default_factory=dict)  # how learning went, where there was any; not kept in files

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def d(self) -> int:
        """Columns of the inputs."""
        return self.factors.d if self.W is None else self.W.shape[1]  # type: ignore[union-attr]

    def dense(self) -> np.ndarray:
        """The frequencies as (F, d) float64, whatever the kind."""
        return self.factors.dense() if self.W is None else self.W  # type: ignore[union-attr]

    def stretched(self, factor: np.ndarray) -> Frequencies:
        """The same kernel of inputs multiplied by ``factor``: w'(Lx) = (Lw)'x, so that the metric is in W and nowhere
        else."""
        if self.W is None:
            raise InputError(
                f"{self.kind} frequencies are never a matrix, and a metric would make them one: use --metric none, or"
                " another map, such as orthogonal"
            )
        return replace(self, W=apply_factor(self.W, factor))

    def arrays(self) -> dict[str, np.ndarray]:
        """Named arrays for a model file, from which ``from_arrays`` makes equal frequencies."""
        parts = {"W": self.W} if self.factors is None else self.factors.arrays()
        return {"weights": self.weights, **parts}  # type: ignore[dict-item]

    @classmethod
    def from_arrays(cls, kind: str, arrays: dict[str, np.ndarray]) -> Frequencies:
        """The frequencies that ``arrays()`` described; arrays that do not fit together are a FileFormatError."""
        parts = dict(arrays)
        weights = _taken(parts, "weights")
        W = parts.get("W")
        factors = StructuredProjection.from_arrays(parts) if W is None else None
        count = len(factors.scale) if factors is not None else len(W)  # type: ignore[arg-type]
        if weights.shape != (count,) or (W is not None and W.ndim != 2):
            raise FileFormatError(f"the map's frequencies are damaged: {count} of them and weights {weights.shape}")
        return cls(W, weights, kind, factors)


def _taken(parts: dict[str, np.ndarray], name: str) -> np.ndarray:
    try:
        return parts.pop(name)
    except KeyError:
        raise FileFormatError(f"the map's frequencies are damaged: array {name!r} is missing") from None


def apply_factor(X: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Inputs, or frequencies, times a symmetric factor: (d, d), or (d,) if it is diagonal."""
    return X * factor if factor.ndim == 1 else X @ factor


def uniform_weights(F: int) -> np.ndarray:
    """The weights of frequencies that all count the same."""
    return np.full(F, 1.0 / F)


def evenly(W: np.ndarray, kind: str) -> Frequencies:
    """Dense frequencies that all count the same."""
    return Frequencies(W, uniform_weights(len(W)), kind)


def need_radial(kind: str, kernel: Kernel) -> None:
    """Kinds that draw directions and norms apart need a kernel whose directions are uniform."""
    if not kernel.radial:
        raise InputError(
            f"{kind} frequencies need a kernel of the Euclidean distance, and the {kernel.label} kernel is a product "
            "over columns: use mc, halton, sobol, lattice or digital-net, or the gaussian or a matern kernel"
        )
