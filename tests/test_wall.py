"""The wall: whatever the rows that judge hold, every choice and every weight that they judge has the same bits.

A table has text, groups, weights and gaps; a blend is trained on it with its pilot. Then all rows that judge get other
weights and targets of pure noise (or other inputs and levels, too), and it is trained again.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamrf.data.columns import Handling
from streamrf.data.open import open_source
from streamrf.data.source import Span
from streamrf.data.split import JUDGE, Split
from streamrf.features.pipeline import Pipeline
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.solvers import binning, boosting, cholesky, judging, stacking
from streamrf.statistics.scores import Calibration, Predictor, Weights
from streamrf.support.progress import Reporter
from streamrf.support.threads import ALONE, Threads
from streamrf.training.run import Settings, Training

ROWS = 1100
BLEND = {"map": "blend", "D": 60, "grids": 12, "table_bits": 7}
NOTES = ("pilot", "certainty", "compared", "trained", "learning", "trees", "lambda_path", "asked")


def table(classes: int) -> dict[str, Any]:
    """Levels say something of the target, so that codes made of targets matter."""
    rng = np.random.default_rng(5)
    X, level = rng.standard_normal((ROWS, 3)), rng.integers(0, 30, ROWS)
    X[rng.random(ROWS) < 0.05, 2] = np.nan
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * (level % 7) + 0.1 * rng.standard_normal(ROWS)
    target = np.digitize(y, np.quantile(y, np.linspace(0, 1, classes + 1)[1:-1])) if classes else y
    names = np.array([f"t{i}" for i in range(30)])
    others = {"y": target, "w": rng.uniform(0.5, 2, ROWS), "group": rng.integers(0, 350, ROWS)}
    return {"x0": X[:, 0], "x1": X[:, 1], "x2": X[:, 2], "text": names[level], **others}


def with_other_judges(rows: dict[str, Any], judges: np.ndarray, inputs: bool) -> dict[str, Any]:
    """Inputs stay in the column with gaps: the median that fills these is of all rows, as roles are told by inputs
    without gaps."""
    rng, count = np.random.default_rng(6), int(judges.sum())
    other = {name: column.copy() for name, column in rows.items()}
    other["w"][judges] = rng.uniform(0.5, rows["w"][~judges].max(), count)
    classes = rows["y"].dtype.kind == "i"
    other["y"][judges] = rng.choice(rows["y"], count) if classes else 2 * rng.standard_normal(count)
    if inputs:
        other["text"][judges] = rng.choice(rows["text"], count)
        for name in ("x0", "x1"):
            other[name][judges] = 2 * rng.standard_normal(count)
    return other


def bits_of(*parts: Any) -> str:
    """A digest of arrays and JSON, however they are nested."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, dict):
            for name in sorted(part):
                digest.update(f"{name}{bits_of(part[name])}".encode())
        elif isinstance(part, (list, tuple)):
            digest.update(bits_of(*part).encode())
        else:
            digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return digest.hexdigest()


def without_times(document: Any) -> Any:
    if isinstance(document, dict):
        return {name: without_times(value) for name, value in document.items() if name not in ("seconds", "shards")}
    return [without_times(each) for each in document] if isinstance(document, list) else document


class Run:
    """One training, with all that was there before the rows that judge joined."""

    def __init__(self, place: Any, rows: dict[str, Any], recipe: Recipe, monkeypatch: Any) -> None:
        pq.write_table(pa.table(rows), place)
        source = open_source(
            place, target="y", exclude="group", columns=Handling(), holdout_by="group", sample_weight="w"
        )
        self.judged: list[Predictor] = []

        def judge(pipeline: Pipeline, weights: Weights, rows: Any, calibration: Calibration | None, *rest: Any) -> Any:
            kept = replace(weights, coefficients=weights.coefficients.copy())  # steps with all rows go on in place
            self.judged.append(Predictor(pipeline, kept, calibration))
            return judging.judge(pipeline, weights, rows, calibration, *rest)

        for module in (binning, boosting, cholesky, stacking):
            monkeypatch.setattr(module, "judge", judge)
        with Threads(1) as threads:
            self.model: Model = Training(source, recipe, Settings(threads=1), Reporter(), threads).run().model
        self.judges = Split.from_json(self.model.metadata["split"]).roles(source.read(Span(0, ROWS))) == JUDGE

    @property
    def chosen(self) -> Any:
        """Settings, trials of the pilot, the path of lambda, numbers of trees: nothing of the rows that judge."""
        told = without_times(self.model.metadata)
        return self.model.recipe, {name: told[name] for name in NOTES if name in told}

    def judged_bits(self) -> list[str]:
        """Of everything that was judged: maps, codes of levels, scalings, weights, shares, calibration."""
        return [
            bits_of(without_times(each.pipeline.to_parts()), each.weights.coefficients, each.weights.intercept,
                    None if each.calibration is None else vars(each.calibration))
            for each in self.judged
        ]  # fmt: skip

    def judged_scores(self, X: np.ndarray) -> list[str]:
        return [bits_of(each.scores(X, ALONE)) for each in self.judged]


@pytest.mark.parametrize(
    ("classes", "how", "inputs", "turns"),
    [
        pytest.param(0, {}, False, 5, id="numbers"),
        pytest.param(3, {}, False, 1, id="classes"),
        pytest.param(2, {"class_weight": "balanced", "threshold": "auto"}, False, 1, id="a threshold, balanced"),
        pytest.param(0, {}, True, 1, id="other inputs"),
    ],
)
def test_rows_that_judge_change_nothing_that_they_judge(classes, how, inputs, turns, tmp_path, monkeypatch):
    if turns == 1:
        monkeypatch.setattr(stacking, "SMALL_ROWS", 0)
    monkeypatch.setattr(stacking, "LEAST_SHARE", -1.0)  # every member stays, whatever its share
    recipe, rows = Recipe(**BLEND, seed=3, **how), table(classes)
    one = Run(tmp_path / "a.parquet", rows, recipe, monkeypatch)
    other = Run(tmp_path / "b.parquet", with_other_judges(rows, one.judges, inputs), recipe, monkeypatch)
    assert 0.1 < one.judges.mean() < 0.4
    assert np.array_equal(one.judges, other.judges)
    assert one.chosen == other.chosen
    kinds = [kind for kind in ("landmarks", "binning", "trees") for _ in range(turns)]
    assert [member.map.kind for member in one.model.map.members] == kinds
    assert len(one.judged) == len(kinds) + 1  # each member, and the blend
    if inputs:  # which bins there are is told by all rows, and fills by columns without gaps; neither changes a score
        coded = open_source(tmp_path / "a.parquet", target="y", exclude="group", columns=one.model.pipeline.columns)
        X = coded.read(Span(0, ROWS)).X[~one.judges]
        assert one.judged_scores(X) == other.judged_scores(X)
    else:
        assert one.judged_bits() == other.judged_bits()
    figure = "error" if classes else "rmse"
    found, noise = (run.model.metadata["holdout"][figure] for run in (one, other))
    assert noise > 1.5 * found  # nobody could have learned these
    assert bits_of(one.model.to_parts()[1]) != bits_of(other.model.to_parts()[1])  # they joined in the end
