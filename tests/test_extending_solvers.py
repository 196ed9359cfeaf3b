"""A solver and a statistic that are defined outside of the package: one class each, then `train` takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import pytest
from solvers_conformance import SolverConformance
from statistics_conformance import StatisticConformance, make_blocks

import streamrf
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block
from streamrf.features.pipeline import Pipeline
from streamrf.features.targets import TargetCoding
from streamrf.solvers import rates
from streamrf.solvers.base import Fitted, Solver
from streamrf.solvers.cholesky import Cholesky
from streamrf.solvers.plan import Plan, Sizes
from streamrf.solvers.rates import Rates
from streamrf.solvers.settings import KNOWN
from streamrf.statistics.base import CountedState, Statistic
from streamrf.statistics.holdout import Holdout
from streamrf.statistics.scores import Weights
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.threads import Threads
from streamrf.training.plan import plan_run

RECIPE = streamrf.Recipe(D=32, kernel="gaussian", length_scale=2.0, bits="8", pilot="none", ridge=1e-4, holdout=0.0)


@dataclass
class ProductsState(CountedState):
    """Products of whole features and targets, as Python would write them."""

    products: np.ndarray  # (D + 1 + k, D + 1 + k) int64
    rows: int = 0

    def __iadd__(self, other: ProductsState) -> Self:
        self.products += other.products
        self.rows += other.rows
        return self

    def __isub__(self, other: ProductsState) -> Self:
        self.products -= other.products
        self.rows -= other.rows
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        return {"toy.products": self.products, "toy.rows": np.array([self.rows], np.int64)}


@dataclass
class Products(Statistic[ProductsState]):
    pipeline: Pipeline

    def zero(self) -> ProductsState:
        size = self.pipeline.map.n_features + 1 + self.pipeline.coding.outputs
        return ProductsState(np.zeros((size, size), np.int64))

    @property
    def coding(self) -> TargetCoding:
        return self.pipeline.coding

    def update(self, state: ProductsState, block: Block, threads: Threads, skip: np.ndarray | None = None) -> None:
        block = block if skip is None else block.take(~skip)
        if not len(block):
            return
        pipeline, coding = self.pipeline, self.pipeline.coding
        features = pipeline.map.block(len(block), np.int16)
        pipeline.map.compute(pipeline.scaled(block.X), features, threads)
        steps = np.rint((coding.values(block.targets) - coding.offset) / coding.step).astype(np.int64)
        ones = np.ones((len(block), 1), np.int64)
        Z = np.concatenate([features[:, : pipeline.map.n_features].astype(np.int64), ones, steps >> 12], axis=1)
        state.products += Z.T @ Z
        state.rows += len(block)

    def load(self, arrays: dict[str, np.ndarray]) -> ProductsState:
        zero = self.zero()
        for name, wanted in zero.arrays().items():
            found = arrays.get(name)
            if found is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
                raise FileFormatError(f"{name} is damaged")
        return ProductsState(arrays["toy.products"], int(arrays["toy.rows"][0]))


@pytest.fixture
def toy(request: pytest.FixtureRequest) -> Iterator[None]:
    """Defining the class is enough; it is forgotten after the test."""

    class Toy(Solver):
        """Normal equations, solved by numpy."""

        name = "toy"
        preference = getattr(request, "param", Solver.preference)

        @classmethod
        def plan(cls, sizes: Sizes) -> Plan:
            return replace(Cholesky.plan(sizes), solver=cls.name, why="it was asked for")

        @classmethod
        def estimate(cls, plan: Plan) -> Mapping[str, float]:
            return {"pass": 1.0, "solve": 0.1}

        def fit(self) -> Fitted:
            statistic = Holdout(Products(self.pipeline), self.run.split, self.run.shard_starts)
            state = self.passes.sum(statistic).sums
            D, n, coding = self.pipeline.map.n_features, state.rows, self.pipeline.coding
            amplitudes, step = self.pipeline.map.amplitudes, coding.step * 2**12
            mean, target_mean = state.products[:D, D] / n, state.products[D + 1 :, D] / n * step
            S = (state.products[:D, :D] / n - np.outer(mean, mean)) * np.outer(amplitudes, amplitudes)
            c = (state.products[:D, D + 1 :] / n * step - np.outer(mean, target_mean)) * amplitudes[:, None]
            w = np.linalg.solve(S + self.first_ridge * np.eye(D), c) * amplitudes[:, None]
            weights = Weights(w, target_mean + coding.offset - mean @ w, self.first_ridge)
            return Fitted(weights, n, state.digest())

    yield
    KNOWN.remove(Toy)


def table(rows: int = 800) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((rows, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1]


@pytest.mark.usefixtures("toy")
def test_train_takes_a_solver_from_outside(tmp_path):
    X, y = table()
    toy, usual = (streamrf.train((X, y), RECIPE.with_(solver=name)).model for name in ("toy", "cholesky"))
    assert toy.recipe.solver == "toy"
    np.testing.assert_allclose(streamrf.predict(toy, X), streamrf.predict(usual, X), atol=2e-3)
    toy.save(tmp_path / "toy.model")
    assert np.array_equal(streamrf.predict(tmp_path / "toy.model", X), streamrf.predict(toy, X))


@pytest.mark.usefixtures("toy")
class TestToySolver(SolverConformance):
    settings: ClassVar = {"solver": "toy", "ridge": 1e-4, "holdout": 0.0}


@pytest.mark.parametrize(
    ("toy", "D", "expected"),
    [(10, 100, "cholesky"), (-1, 100, "toy"), (10, 10_000, "toy")],
    indirect=["toy"], ids=["not preferred", "preferred", "much faster"],
)  # fmt: skip
@pytest.mark.usefixtures("toy")
def test_auto_asks_solvers_for_their_preference_and_time(monkeypatch, D, expected):
    slow = Rates(projection=1e10, cosines=1e9, gram=1e10, factor=1e10)
    monkeypatch.setattr(rates, "rates_of_this_machine", lambda bits, threads: slow)
    X = np.broadcast_to(np.zeros((1, 4), np.float32), (400_000, 4))
    source = ArraySource(X, np.broadcast_to(np.zeros(1), len(X)))
    plan = plan_run(source, streamrf.Recipe(D=D, bits="8"), outputs=1, threads=2, budget=10 * 2**30)
    assert plan.solver == expected
    assert ("; toy " in plan.why) == (D == 10_000)


@pytest.mark.parametrize(("factor", "expected"), [(1e12, "cholesky"), (1e10, "cg")])
def test_sums_that_nobody_keeps_are_worth_no_time(monkeypatch, factor, expected):
    """Cholesky takes about 30 s here and cg less: kept sums are worth that, others are not."""
    rate = Rates(projection=1e10, cosines=1e9, gram=factor, factor=factor)
    monkeypatch.setattr(rates, "rates_of_this_machine", lambda bits, threads: rate)
    X = np.broadcast_to(np.zeros((1, 4), np.float32), (60_000, 4))
    source = ArraySource(X, np.broadcast_to(np.zeros(1), len(X)))
    sizes = {"outputs": 1, "threads": 2, "budget": 10 * 2**30}
    plans = [plan_run(source, streamrf.Recipe(D=4000, bits="8"), **sizes, keeps_sums=kept) for kept in (True, False)]
    assert [plan.solver for plan in plans] == ["cholesky", expected]
    for plan in plans:
        costs = re.search(r"exact sums (.*), keep update and forget; conjugate gradients (.*) passes\)", plan.why)
        assert costs is not None, plan.why


def test_a_solver_that_nobody_defined_is_refused():
    with pytest.raises(InputError, match="`solver='toy'`: must be one of auto, cholesky, cg"):
        RECIPE.with_(solver="toy")


class TestProductsConformance(StatisticConformance):
    @pytest.fixture
    def blocks(self):
        return make_blocks(*table(240), [50, 50, 131])

    @pytest.fixture
    def statistic(self):
        return Products(streamrf.train(table(), RECIPE).model.pipeline)
