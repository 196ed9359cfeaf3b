"""Random Fourier features: cos(w'x + b), or cos and sin pairs, from any set of frequencies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamrf.features.base import Arrays, FeatureMap
from streamrf.features.fourier.cosine import PackedCosines, wrap_projections
from streamrf.features.fourier.frequencies import Frequencies
from streamrf.features.precision import Precision, make_precision
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import ALONE, Threads

FORMS = ("phase", "pairs")
BATCH = 256  # rows whose projections are alive at once in each thread, for structured frequencies


@dataclass(frozen=True, eq=False)
class FourierMap(FeatureMap):
    """``phase``: one cosine a frequency, at a random phase. ``pairs``: a cosine and a sine a frequency."""

    kind = "fourier"

    frequencies: Frequencies
    phases: np.ndarray  # (F,) float64, radians; zeros for pairs
    form: str
    precision: Precision

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"feature form {self.form!r}: choose one of {', '.join(FORMS)}")
        if self.frequencies.W is None and self.precision.name == "float64":
            raise InputError(
                f"{self.frequencies.kind} frequencies are projected in float32: use --bits 7, 8, 12 or float32"
            )

    @property
    def n_inputs(self) -> int:
        return self.frequencies.d

    @property
    def n_features(self) -> int:
        return len(self._phases)

    @cached_property
    def _phases(self) -> np.ndarray:
        """One a feature: pairs are a cosine and a cosine a quarter turn behind, which is a sine."""
        if self.form == "phase":
            return self.phases
        return np.concatenate([self.phases, self.phases - np.pi / 2])

    @cached_property
    def _packed(self) -> PackedCosines:
        assert self.frequencies.W is not None
        repeats = len(self._phases) // len(self.phases)
        return PackedCosines.pack(np.tile(self.frequencies.W, (repeats, 1)), self._phases, self.precision.inputs)

    def waves(self) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies (n_features, d) and phases (n_features,): a feature is the cosine of its wave."""
        W = self.frequencies.dense()
        return np.tile(W, (len(self._phases) // len(W), 1)), self._phases

    @property
    def report(self) -> JSON:
        return self.frequencies.report

    @property
    def width(self) -> int:
        return self.n_features if self.frequencies.W is None else self._packed.padded

    @cached_property
    def amplitudes(self) -> np.ndarray:
        weights = self.frequencies.weights
        if self.form == "phase":
            return np.sqrt(2 * weights) / self.precision.scale
        return np.sqrt(np.concatenate([weights, weights])) / self.precision.scale

    def compute(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        if self.frequencies.W is not None:
            self._packed.compute(X, self.precision.scale, out, threads)
            return
        threads.each(lambda first: self._structured(X, first, out), range(0, len(X), BATCH))

    def _structured(self, X: np.ndarray, first: int, out: np.ndarray) -> None:
        """Project one batch by its factors, then wrap: never a d x F matrix."""
        part = X[first : first + BATCH]
        projected = np.empty((len(part), len(self.frequencies)), np.float32)
        self.frequencies.structure.project(part, projected, ALONE)
        turns = (self._phases / (2 * np.pi)).astype(np.float32)
        wrap_projections(projected, turns, np.float32(self.precision.scale), out[first : first + BATCH])

    def to_parts(self) -> tuple[JSON, Arrays]:
        names = {"frequencies": self.frequencies.kind, "form": self.form, "precision": self.precision.name}
        arrays = {f"frequencies.{name}": array for name, array in self.frequencies.arrays().items()}
        return {"kind": self.kind, **names}, {**arrays, "map.phases": self.phases}

    @classmethod
    def from_parts(cls, document: JSON, arrays: Arrays) -> FourierMap:
        prefix = "frequencies."
        parts = {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
        frequencies, phases = Frequencies.from_arrays(str(document["frequencies"]), parts), arrays["map.phases"]
        if phases.shape != (len(frequencies),):
            raise FileFormatError(f"the model's map is damaged: {len(frequencies)} frequencies, {phases.shape} phases")
        return cls(frequencies, phases, str(document["form"]), make_precision(str(document["precision"])))
