"""What every solver must do. A solver subclasses ``SolverConformance`` and names the settings that ask for it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from interruptions import Stops

import streamrf
from streamrf.data.readers.memory import ArraySource
from streamrf.data.source import Block, Span
from streamrf.solvers.base import Solver
from streamrf.solvers.plan import STAGES, Plan
from streamrf.solvers.registry import candidates, solver_of
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.threads import Threads
from streamrf.training.plan import plan_run
from streamrf.training.run import Settings, Trained, Training

ROWS = 900
FIXED = streamrf.Recipe(D=24, kernel="gaussian", length_scale=2.0, scaling="standard", bits="8", pilot="none")


@cache
def table(classes: bool) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((ROWS, 3))
    y = np.sin(X[:, 0]) + X[:, 1]
    return X, (y > 0).astype(int) if classes else y


class Unread(ArraySource):
    """Rows that nobody may read."""

    def read(self, span: Span) -> Block:
        raise AssertionError("a plan reads no row")


class SolverConformance:
    """``settings`` ask for the solver, and ``larger`` ones for a larger model."""

    settings: ClassVar[dict[str, Any]]
    larger: ClassVar[dict[str, Any]] = {"D": 50 * FIXED.D}  # that need more memory
    classes = False  # whether its loss is for classes
    order_free = True  # whether the chunks that rows are stored in change no bit

    @property
    def recipe(self) -> streamrf.Recipe:
        return FIXED.with_(**self.settings)

    @property
    def solver(self) -> type[Solver]:
        return solver_of(self.recipe)

    def source(self, chunk_rows: int = ROWS) -> ArraySource:
        return ArraySource(*table(self.classes), chunk_rows=chunk_rows)

    def plan(self, rows: int = ROWS, **changes: Any) -> Plan:
        X = np.broadcast_to(np.zeros((1, 3), np.float32), (rows, 3))
        source = Unread(X, np.broadcast_to(np.zeros(1), (rows,)), chunk_rows=10_000)
        known = {"outputs": 1, "threads": 2, "budget": 4 * 2**30, "reserved": 2**28}  # what a process holds changes
        return plan_run(source, self.recipe.with_(**changes), **known)

    def run(
        self, settings: Settings, reporter: Reporter | None = None, *, threads: int = 1, chunk_rows: int = 100
    ) -> Trained:
        """A run that reads a chunk at a time, so that there is something between two blocks."""
        with Threads(threads) as pool:
            training = Training(self.source(chunk_rows), self.recipe, settings, reporter or Reporter(), pool)
            usual = training._agreed
            training._agreed = lambda plan: usual(replace(plan, span_rows=chunk_rows))  # type: ignore[method-assign]
            return training.run()

    @classmethod
    @cache
    def undisturbed(cls) -> Trained:
        """A run with nothing unusual, once for all tests of a solver."""
        return cls().run(Settings())

    @staticmethod
    def bits(trained: Trained) -> tuple[bytes, bytes, str]:
        weights = trained.model.weights
        digest = str(trained.model.metadata["statistics_digest"])
        return weights.coefficients.tobytes(), weights.intercept.tobytes(), digest

    # -- the plan

    def test_it_is_known_by_its_name_and_says_what_it_can_do(self) -> None:
        recipe = self.recipe
        assert self.solver.name == self.plan().solver == recipe.solver
        assert recipe.loss in self.solver.losses
        preferences = [each.preference for each in candidates(recipe.with_(solver="auto"))]
        assert preferences == sorted(preferences)

    def test_a_plan_comes_from_sizes_alone_and_is_always_the_same(self) -> None:
        plan = self.plan()
        assert plan.to_json() == self.plan().to_json()
        assert plan.passes >= 1
        assert plan.why
        for name, part in plan.parts.items():
            assert part.bytes >= 0, name
            assert part.stages, name
            assert set(part.stages) <= set(STAGES), name
            assert part.cure, name

    def test_more_rows_and_features_never_need_less(self) -> None:
        small, long, wide = self.plan(), self.plan(rows=50 * ROWS), self.plan(**self.larger)
        assert long.projected >= small.projected
        assert wide.projected > small.projected

    def test_time_is_estimated_and_grows_with_the_rows(self) -> None:
        few, many = (dict(self.solver.estimate(self.plan(rows=rows))) for rows in (10_000, 1_000_000))
        assert few.keys() == many.keys() == {"pass", "solve"}
        assert all(isfinite(value) and value >= 0 for value in [*few.values(), *many.values()])
        assert sum(many.values()) >= sum(few.values())

    # -- the fit

    def test_it_learns(self) -> None:
        X, y = table(self.classes)
        model = self.undisturbed().model
        found = streamrf.predict(model, X)
        right = np.mean(found == y) if self.classes else 1 - np.mean((found - y) ** 2) / y.var()
        assert right > 0.9
        assert model.recipe.solver == self.recipe.solver
        assert model.metadata["rows"] == ROWS

    @pytest.mark.parametrize(("threads", "chunk_rows"), [(1, ROWS), (3, 100), (2, 37)])
    def test_threads_and_chunks_change_no_bit(self, threads: int, chunk_rows: int) -> None:
        found = self.run(Settings(), threads=threads, chunk_rows=chunk_rows if self.order_free else 100)
        assert self.bits(found) == self.bits(self.undisturbed())

    @pytest.mark.parametrize("after", [1, 5, 8])
    def test_an_interrupted_run_resumes_to_the_same_bits(self, tmp_path: Path, after: int) -> None:
        settings = Settings(checkpoint=tmp_path / "kept", checkpoint_every=0)
        with pytest.raises(Interrupted):
            self.run(settings, Stops(after))
        assert self.bits(self.run(settings)) == self.bits(self.undisturbed())

    def test_its_model_predicts_the_same_from_a_file(self, tmp_path: Path) -> None:
        model, X = self.undisturbed().model, table(self.classes)[0]
        model.save(tmp_path / "kept.model")
        assert np.array_equal(streamrf.predict(tmp_path / "kept.model", X), streamrf.predict(model, X))
