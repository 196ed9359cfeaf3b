"""What a report is made from: the model, its sums if they are kept, and a sample of rows if there is data.

Rows that the model was trained on are first removed from its sums, exactly, and the weights are solved without them.
So even a report on training data shows errors on unseen rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from streamrf.data.screening import draw_sample
from streamrf.data.source import Block, Source
from streamrf.features.base import FeatureMap
from streamrf.features.binning.map import BinningMap
from streamrf.features.blend import BlendMap
from streamrf.features.trees.map import TreesMap
from streamrf.models.model import Model
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.rowset import RowSet
from streamrf.support.errors import MismatchError, NumericalError
from streamrf.support.storage.archive import read_archive
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import Threads
from streamrf.training.update.changes import rows_in
from streamrf.training.update.statistics import Statistics, check_possible

ROWS = 5000  # of the data, for errors, importance and curves
FORGET_D = 3000  # up to this many features, rows are removed from the sums in a second or two
MOST_STATISTICS = 2 * 2**30  # bytes of sums that are read for a report
BLOCK = 2048  # rows whose features are made at once


@dataclass
class Evidence:
    """Everything the sections are made from."""

    model: Model
    threads: Threads
    versions: dict[str, str]
    statistics: Statistics | None = None
    source: Source | None = None
    rows: Block | None = None  # a sample, in random order
    seen: bool = False  # whether the sample was trained on
    unseen_model: Model | None = None  # the model without the sample, if it was trained on it

    @property
    def metadata(self) -> JSON:
        """What the model file says of the training run."""
        return self.model.metadata

    @property
    def maps(self) -> tuple[FeatureMap, ...]:
        """The map of the model, or those of the members of a blend."""
        map = self.model.map
        return tuple(member.map for member in map.members) if isinstance(map, BlendMap) else (map,)

    @property
    def kinds(self) -> set[str]:
        return {map.kind for map in self.maps}

    @property
    def has_kernel(self) -> bool:
        """Whether kernel, width and lambda of the recipe are those of a part of the model."""
        return bool(self.kinds - {BinningMap.kind, TreesMap.kind})

    @property
    def judged(self) -> Model:
        """The model whose errors are shown."""
        return self.unseen_model or self.model

    @cached_property
    def scores(self) -> np.ndarray:
        """(n, outputs): the model's scores of the sample."""
        assert self.rows is not None
        return self.judged.scores(self.rows.X, self.threads)

    @cached_property
    def truth(self) -> np.ndarray:
        """Class positions (n,), or numbers (n, outputs)."""
        assert self.rows is not None
        assert self.rows.y is not None
        coding = self.model.coding
        return coding.codes(self.rows.y) if self.model.is_classifier else coding.values(self.rows.y)

    def column_name(self, column: int) -> str:
        names = self.model.feature_names
        return names[column] if names else f"x{column}"


def gather_evidence(path: str | Path, source: Source | None, threads: Threads, *, rows: int = ROWS) -> Evidence:
    """Load the model, draw the sample, and remove it from the sums if it is in them."""
    archive = read_archive(path, kind="model")
    evidence = Evidence(Model.load(path), threads, archive.document("model").get("versions", {}))
    if archive.has_arrays("statistics") and archive.files["statistics.safetensors"].n_bytes <= MOST_STATISTICS:
        evidence.statistics = Statistics.load(path)
    if source is not None:
        _take_sample(evidence, source, rows)
    return evidence


def _take_sample(evidence: Evidence, source: Source, rows: int) -> None:
    evidence.model.check_fits(source)
    evidence.source = source
    evidence.seen = any(evidence.model.ledger.rows(member.fingerprint()) for member in source.members())
    leave = evidence.seen and _can_forget(evidence)  # most rows must stay in the sums
    most = max(2, source.n_rows // 4) if leave else source.n_rows
    evidence.rows = draw_sample(source, min(rows, most), evidence.model.recipe.seed + 1, "drop")
    if leave:
        evidence.unseen_model = _without(evidence, source, evidence.rows)


def _can_forget(evidence: Evidence) -> bool:
    statistics = evidence.statistics
    return statistics is not None and statistics.exact and statistics.prepared.map.n_features <= FORGET_D


def _without(evidence: Evidence, source: Source, rows: Block) -> Model | None:
    """The model solved from the sums of all other rows; None unless all of these rows are in the sums."""
    statistics = evidence.statistics
    assert statistics is not None
    try:
        if not rows_in(statistics.ledger, source).contains_all(row_set(rows.index)):
            return None
        rest = replace(statistics, state=_less(statistics, rows, evidence.threads))
        return rest.solve(evidence.model.weights.ridge, threads=evidence.threads)
    except (MismatchError, NumericalError):  # the data has changed since training: judge its rows as they are
        return None


def _less(statistics: Statistics, rows: Block, threads: Threads) -> GramState:
    prepared = statistics.prepared
    gram = Gram.on_this_machine(prepared.scaling, prepared.map, prepared.coding, threads.count)
    leaving = gram.zero()
    gram.update(leaving, replace(rows, weights=None), threads)
    rest = statistics.state.copy()
    rest -= leaving
    check_possible(prepared, rest, "the sample")
    return rest


def row_set(index: np.ndarray) -> RowSet:
    """Rows by their numbers, as spans."""
    ordered = np.unique(index)
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    starts, stops = ordered[np.r_[0, breaks + 1]], ordered[np.r_[breaks, len(ordered) - 1]] + 1
    return RowSet([(int(a), int(b)) for a, b in zip(starts, stops, strict=True)])


def fourier_features(model: Model, X: np.ndarray, columns: np.ndarray, threads: Threads) -> np.ndarray:
    """Some columns of z(X), float64, a block of rows at a time."""
    parts = []
    for start in range(0, len(X), BLOCK):
        scaled = model.scaling.transform(X[start : start + BLOCK], model.map.precision.inputs)
        parts.append(model.map.dense(scaled, threads)[:, columns])
    return np.concatenate(parts)
