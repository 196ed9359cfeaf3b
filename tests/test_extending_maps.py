"""What is defined outside of the package works like its own: each section adds one thing and trains with it.

Nothing is registered when this file is imported, and each test puts back what it found: other tests list what the
package itself has.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from frequencies_conformance import FrequencyConformance

import streamrf
from streamrf import Recipe
from streamrf.features import kernels
from streamrf.features.base import FeatureMap
from streamrf.features.fourier import KINDS, Draw, Frequencies, Kind, evenly
from streamrf.features.kernels import KERNELS, Kernel, make_kernel
from streamrf.features.precision import Precision, make_precision
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.threads import ALONE

REGISTRIES = (KINDS, KERNELS, kernels._CLASSES, FeatureMap.FAMILIES)


@pytest.fixture
def registries() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = [dict(each) for each in REGISTRIES]
    yield
    restore(before)


def restore(before: list[dict]) -> None:
    for registry, found in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(found)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 4))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]


def trains_and_comes_back(data, recipe: Recipe, path) -> streamrf.Model:
    """Train, save, load and predict; the model explains the targets, and the loaded one is the same."""
    X, y = data
    model = streamrf.train((X, y), recipe).model
    predicted = streamrf.predict(model, X)
    assert np.mean((predicted.ravel() - y) ** 2) < 0.3 * np.var(y)
    model.save(path)
    assert np.array_equal(streamrf.predict(str(path), X), predicted)
    return model


# -- a kind of frequencies: one function


def latin_hypercube(request: Draw) -> Frequencies:
    """One uniform in each of F equal intervals, in every coordinate."""
    rng, shape = request.rng(), (request.F, request.kernel.uniforms(request.d))
    strata = np.stack([rng.permutation(request.F) for _ in range(shape[1])], axis=1)
    return evenly(request.kernel.frequencies((strata + rng.random(shape)) / request.F, request.d))


def register_toy() -> None:
    Kind("toy", "a Latin hypercube")(latin_hypercube)


class TestToyFrequencies(FrequencyConformance):
    """A new kind is held to what every kind is held to by these lines."""

    kind = "toy"

    @pytest.fixture(autouse=True)
    def registered(self, registries: None) -> None:
        register_toy()


def test_frequencies_from_outside_are_trained_with(data, tmp_path, registries):
    register_toy()
    model = trains_and_comes_back(data, Recipe(D=100, map="toy"), tmp_path / "model")
    assert (model.recipe.map, model.map.frequencies.kind) == ("toy", "toy")


def test_a_model_of_a_kind_that_is_not_known_says_so(data, tmp_path, registries):
    before = [dict(each) for each in REGISTRIES]
    register_toy()
    model = streamrf.train(data, Recipe(D=50, map="toy", pilot="none")).model
    model.save(tmp_path / "model")
    restore(before)
    with pytest.raises(FileFormatError, match=r"frequencies of kind 'toy'; this version knows mc.* import"):
        streamrf.Model.load(tmp_path / "model")
    with pytest.raises(InputError, match="`map='toy'`"):
        Recipe(map="toy")
    assert np.array_equal(pickle.loads(pickle.dumps(model.map)).phases, model.map.phases)  # a worker needs no kinds


def test_a_name_is_given_once(registries):
    with pytest.raises(InputError, match="'mc' frequencies already"):
        Kind("mc", "mine")(latin_hypercube)
    register_toy()
    register_toy()  # a notebook cell that is run again


# -- a kernel: one class


def define_toy_kernel() -> type[Kernel]:
    @dataclass(frozen=True)
    class Sinc(Kernel):
        """The product over columns of sin(t) / t for t = (x - y) / l; frequencies are uniform in [-1, 1]."""

        name, radial, product = "toykernel", False, True

        def _between(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
            return np.sinc((X[:, None] - Y) / np.pi).prod(axis=2)

        def _of_gaps(self, gaps: np.ndarray) -> np.ndarray:
            return np.sinc(gaps / np.pi).prod(axis=1)

        def _unit_frequencies(self, U: np.ndarray, d: int) -> np.ndarray:
            return 2.0 * U - 1.0

        def second_moment(self, d: int) -> float:
            return d / 3.0 / self.length_scale**2

    return Sinc


def test_a_kernel_from_outside_is_trained_with(data, tmp_path, registries):
    toy = define_toy_kernel()
    assert make_kernel("toykernel", gamma=4.0) == toy(0.25)
    trains_and_comes_back(data, Recipe(D=100, kernel="toykernel"), tmp_path / "model")


def test_a_kernel_and_frequencies_from_outside_go_together(data, tmp_path, registries):
    register_toy()
    define_toy_kernel()
    trains_and_comes_back(data, Recipe(D=100, map="toy", kernel="toykernel"), tmp_path / "model")


def test_frequencies_of_the_package_draw_from_a_kernel_from_outside(registries):
    kernel = define_toy_kernel()(2.0)
    X = np.random.default_rng(1).standard_normal((30, 3))
    for kind in ("mc", "sobol", "lattice", "moment-matched"):
        drawn = streamrf.features.fourier.draw(kind, kernel, 2000, 3, 0)
        gaps = X[:, None] - X
        assert np.abs(np.cos(gaps @ drawn.dense().T) @ drawn.weights - kernel(X)).max() < 0.12


# -- a map that is not of Fourier features: one class and one function


def define_toy_family() -> type[FeatureMap]:
    @dataclass(frozen=True, eq=False)
    class Tanh(FeatureMap):
        """tanh(w'x + b) with Gaussian w and b."""

        kind = "toy-family"

        W: np.ndarray
        b: np.ndarray
        precision: Precision

        @property
        def n_inputs(self) -> int:
            return self.W.shape[1]

        @property
        def n_features(self) -> int:
            return len(self.W)

        @property
        def amplitudes(self) -> np.ndarray:
            return np.full(len(self.W), len(self.W) ** -0.5 / self.precision.scale)

        def compute(self, X, out, threads) -> None:
            Z = np.tanh(np.asarray(X, np.float64) @ self.W.T + self.b) * self.precision.scale
            out[: len(X), : len(self.W)] = np.rint(Z) if self.precision.exact else Z

        def to_parts(self):
            return {"kind": self.kind, "precision": self.precision.name}, {"toy.W": self.W, "toy.b": self.b}

        @classmethod
        def from_parts(cls, document, arrays):
            return cls(arrays["toy.W"], arrays["toy.b"], make_precision(document["precision"]))

    @Kind("toy-tanh", "hyperbolic tangents", whole=True)
    def draw_tanh(request: Draw) -> Tanh:
        rng = request.rng()
        W = rng.standard_normal((request.F, request.d)) / request.kernel.length_scale
        return Tanh(W, rng.standard_normal(request.F), request.precision)

    return Tanh


@pytest.mark.parametrize("settings", [{}, {"pilot": "none", "bits": "float32"}, {"solver": "cg"}])
def test_a_map_of_another_family_is_trained_with(data, tmp_path, registries, settings):
    define_toy_family()
    model = trains_and_comes_back(data, Recipe(D=100, map="toy-tanh", **settings), tmp_path / "model")
    assert (model.map.kind, model.map.n_features) == ("toy-family", 100)
    assert model.map.dense(data[0][:5], ALONE).shape == (5, 100)
    assert not model.pipeline.unrounded  # it has not said that it can leave floats as they are


def test_a_map_of_a_family_that_is_not_known_says_so(data, tmp_path, registries):
    before = [dict(each) for each in REGISTRIES]
    define_toy_family()
    streamrf.train(data, Recipe(D=50, map="toy-tanh", pilot="none")).model.save(tmp_path / "model")
    restore(before)
    with pytest.raises(FileFormatError, match=r"a map of kind 'toy-family'; this version knows .*fourier"):
        streamrf.Model.load(tmp_path / "model")


def test_a_map_of_another_family_has_no_frequencies(registries):
    define_toy_family()
    with pytest.raises(InputError, match="toy-tanh has no matrix of frequencies"):
        Recipe(D=50, map="toy-tanh", metric="full")
    with pytest.raises(InputError, match="kind toy-tanh has no Fourier frequencies"):
        streamrf.features.fourier.draw("toy-tanh", make_kernel("gaussian"), 5, 3, 0)
