"""Statistics as people hold them: sums, what they are sums of, and which rows are in. They add, subtract and solve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from streamrf.data.columns import Columns
from streamrf.data.source import Source
from streamrf.features.precision import Precision
from streamrf.features.targets import REGRESSION
from streamrf.models.model import Model, UntrainedModel, statistics_of, versions
from streamrf.solvers.lambda_path import GcvPath, walked_outputs
from streamrf.solvers.plan import DEFAULT_BUDGET_SHARE, SLACK
from streamrf.solvers.ridge import NormalEquations, RidgeSolver
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.gram_kernels import DeferredProduct, Layout
from streamrf.statistics.rowset import Ledger
from streamrf.statistics.scores import Calibration, Weights
from streamrf.statistics.targets import TargetScan
from streamrf.support import memory
from streamrf.support.errors import BudgetError, DataError, FileFormatError, InputError, MismatchError, NumericalError
from streamrf.support.storage.archive import Archive, read_archive, write_archive
from streamrf.support.storage.files import content_errors
from streamrf.support.threads import Threads
from streamrf.support.units import format_bytes

ORIGIN = "start both from one `streamrf prepare`, or from one model"


def check_same(first: UntrainedModel, second: UntrainedModel, names: tuple[str, str]) -> None:
    """Refuse sums that do not mean the same, naming the part that differs."""
    ours, theirs = first.pipeline.digests(), second.pipeline.digests()
    for part, describe in _DESCRIPTIONS.items():
        if ours[part] != theirs[part]:
            about = [f"{describe(one)}, {digests[part][:12]}" for one, digests in ((first, ours), (second, theirs))]
            raise MismatchError(
                f"{names[1]} does not belong to {names[0]}:"
                f" the {part} differs ({about[0]} against {about[1]}); {ORIGIN}"
            )
    _check_names(first.feature_names, second.feature_names, names)
    _check_columns(first.columns, second.columns, names)


def _map(prepared: UntrainedModel) -> str:
    return f"{prepared.map.n_features} {prepared.map.kind} features at {prepared.map.precision.name} bits"


def _scaling(prepared: UntrainedModel) -> str:
    return f"{prepared.scaling.kind} scaling of {prepared.scaling.n_inputs} columns"


def _coding(prepared: UntrainedModel) -> str:
    coding = prepared.coding
    return f"classes {', '.join(map(str, coding.classes[:10]))}" if coding.classes else f"{coding.outputs} numbers"


_DESCRIPTIONS = {"scaling": _scaling, "map": _map, "target coding": _coding}


def _check_names(first: tuple[str, ...] | None, second: tuple[str, ...] | None, names: tuple[str, str]) -> None:
    """Columns without names (zarr, npy) are taken for those with names."""
    if first and second and first != second:
        ours, theirs = next((a, b) for a, b in zip(first, second, strict=True) if a != b)
        raise MismatchError(
            f"{names[1]} does not belong to {names[0]}: column {ours!r} of one is {theirs!r} in the other"
        )


def _check_columns(first: Columns | None, second: Columns | None, names: tuple[str, str]) -> None:
    """Tables that became numbers in different ways; numbers that came as such are taken for either."""
    if first and second and first != second:
        ours = next((a for a, b in zip(first.columns, second.columns, strict=False) if a != b), first.columns[-1])
        raise MismatchError(
            f"{names[1]} does not belong to {names[0]}: column {ours.name!r} became numbers in another way; {ORIGIN}"
        )


def check_source(prepared: UntrainedModel, source: Source) -> None:
    """Refuse data whose columns or targets are not those the sums are made of, before a row is read."""
    prepared.check_fits(source)
    wanted = prepared.coding.outputs if prepared.coding.task == REGRESSION else 1
    if source.n_outputs != wanted:
        raise DataError(f"the data has {source.n_outputs} target columns, the statistics have {wanted}")


def check_targets(prepared: UntrainedModel, scan: TargetScan) -> None:
    """Refuse labels or numbers that the target coding does not know, before the pass begins."""
    coding = prepared.coding
    if coding.classes and scan.labels is not None:
        coding.codes(np.array(sorted(scan.labels)))
    elif coding.classes:
        raise DataError(f"the targets are not labels, and the statistics are of {len(coding.classes)} classes")
    elif scan.low is None or scan.high is None:
        raise DataError("the targets are labels, and the statistics are of numbers")
    else:
        coding.encode(np.stack([scan.low, scan.high]), prepared.map.precision)


def check_room_for(state: GramState, more: int, name: str, precision: Precision) -> None:
    most = precision.most_rows
    if state.rows + more > most:
        raise NumericalError(
            f"{name}: {state.rows + more:,} rows, and exact sums of these features hold up to {most:,}"
        )


def check_possible(prepared: UntrainedModel, state: GramState, removed: str) -> None:
    """Sums that no rows can have mean that what was removed was not what had been added."""
    D, layout = prepared.map.n_features, state.layout
    sums = layout.columns(state.totals, D, D + 1)[: D + 1, 0]
    limit = float(prepared.map.precision.scale) * state.rows
    if prepared.map.precision.exact and (sums[D] != state.rows or np.abs(sums[:D]).max() > limit):
        raise MismatchError(
            f"{removed} has changed since it was added (removing it would leave sums that no rows have),"
            " so nothing was removed; retrain on the rest"
        )


def check_budget(paths: Sequence[str | Path], budget: int | None, *, states: int) -> None:
    """Refuse now what would not fit: so many states at once, and the matrix of the solve, which is twice a state."""
    sizes = [read_archive(path).files.get("statistics.safetensors") for path in paths]
    largest = max((size.n_bytes for size in sizes if size), default=0)
    reserved = memory.reserved()
    allowed = budget or reserved + int(DEFAULT_BUDGET_SHARE * memory.available())
    projected = reserved + int(SLACK * (states + 2) * largest)
    if projected > allowed:
        raise BudgetError(
            f"this is projected to need {format_bytes(projected)} ({states} statistics of {format_bytes(largest)} and"
            f" a matrix of twice that), the budget is {format_bytes(allowed)}: raise `memory`"
        )


MODEL, STATISTICS, PREPARED = "model", "statistics", "prepared"
FIRST_RIDGE = 1e-6  # where every walk begins: the model then depends on the rows alone, not on how they came together
CARRIED = ("pilot", "asked", "history", "reading")  # parts of a model's metadata that stay true of its statistics


@dataclass
class Statistics:
    """A commutative group, bit for bit: ``+`` joins rows that lie apart, ``-`` takes out rows that are in.

    Each refuses statistics of another map, scaling or target coding, and rows that are in already or were never in.
    """

    prepared: UntrainedModel
    state: GramState
    ledger: Ledger
    dropped: int = 0  # rows that were left out because of NaN
    ridge: float | None = None  # of the model these are the statistics of
    calibration: Calibration | None = None  # likewise
    name: str = "these statistics"
    ridges: tuple[float, ...] = ()  # of each output of that model, where they differ

    @classmethod
    def zero(cls, prepared: UntrainedModel) -> Self:
        """The statistics of no rows."""
        return cls(prepared, _gram(prepared).zero(), Ledger())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """From a statistics archive, or from a model that was saved with its statistics."""
        archive = read_archive(path)
        if archive.kind not in (MODEL, STATISTICS):
            raise MismatchError(f"{path} is a {archive.kind} archive, and statistics or a model are needed.")
        with content_errors(path, InputError):
            found = cls._from_model(archive) if archive.kind == MODEL else cls._from_archive(archive)
            found._check_counts()
            return found

    def _check_counts(self) -> None:
        if self.rows + self.dropped != self.ledger.count:
            raise FileFormatError(
                f"{self.name}: the sums hold {self.rows:,} rows and {self.dropped:,} were dropped, but the ledger has"
                f" {self.ledger.count:,}; the file is damaged."
            )

    @classmethod
    def _from_model(cls, archive: Archive) -> Self:
        model = Model.load(archive.path)
        prepared = prepared_of(model)
        state = _gram(prepared).load(statistics_of(archive))
        dropped = int(model.metadata.get("dropped") or 0)
        weights = model.weights
        return cls(
            prepared, state, model.ledger, dropped, weights.ridge, model.calibration, str(archive.path), weights.ridges
        )

    @classmethod
    def _from_archive(cls, archive: Archive) -> Self:
        document = archive.document(STATISTICS)
        prepared = UntrainedModel.from_parts(document["prepared"], archive.arrays("arrays"))
        state = _gram(prepared).load(statistics_of(archive))
        return cls(
            prepared, state, Ledger.from_json(document["ledger"]), int(document["dropped"]), name=str(archive.path)
        )

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write sums, settings and ledger: all that another site needs, and no row of the data."""
        document, arrays = self.prepared.to_parts()
        content = {
            "prepared": document, "ledger": self.ledger.to_json(), "dropped": self.dropped, "rows": self.rows,
            "statistics_digest": self.digest(), "versions": versions(),
        }  # fmt: skip
        files = {"arrays": arrays, "statistics": self.state.arrays()}
        write_archive(path, kind=STATISTICS, documents={STATISTICS: content}, arrays=files, overwrite=overwrite)

    @property
    def rows(self) -> int:
        return self.state.rows

    @property
    def exact(self) -> bool:
        """Whether sums are integers, so that ``-`` leaves no rounding behind."""
        return self.prepared.map.precision.exact

    def digest(self) -> str:
        """SHA-256 of the sums: equal digests mean equal bits."""
        return self.state.digest()

    def copy(self) -> Self:
        return replace(self, state=self.state.copy(), ledger=self.ledger.copy())

    def __iadd__(self, other: Statistics) -> Self:
        check_same(self.prepared, other.prepared, (self.name, other.name))
        check_room_for(self.state, other.rows, other.name, self.prepared.map.precision)
        with _about(other.name):
            self.ledger.add_all(other.ledger)
        self.state += other.state
        self.dropped += other.dropped
        self.calibration = self.calibration or other.calibration
        return self

    def __isub__(self, other: Statistics) -> Self:
        check_same(self.prepared, other.prepared, (self.name, other.name))
        rest = self.ledger.copy()
        with _about(other.name):
            rest.remove_all(other.ledger)
        self.state -= other.state
        try:
            check_possible(self.prepared, self.state, other.name)
        except MismatchError:
            self.state += other.state
            raise
        self.ledger = rest
        self.dropped -= other.dropped
        return self

    def __add__(self, other: Statistics) -> Self:
        result = self.copy()
        result += other
        return result

    def __sub__(self, other: Statistics) -> Self:
        result = self.copy()
        result -= other
        return result

    def select(self, outputs: Sequence[int]) -> Self:
        """The statistics of some of the targets (numbered from 0) alone, as if there had never been others."""
        coding = self.prepared.coding
        if coding.task != REGRESSION:
            raise InputError("the outputs of a classifier are its classes, which belong together: none can be left out")
        chosen = sorted(set(outputs))
        if not chosen or not 0 <= chosen[0] <= chosen[-1] < coding.outputs:
            raise InputError(
                f"outputs {', '.join(map(str, outputs))}: numbers from 0 to {coding.outputs - 1} are wanted"
            )
        D, digits = self.prepared.map.n_features, coding.digits(self.prepared.map.precision)
        targets = [D + 1 + output * digits + digit for output in chosen for digit in range(digits)]
        fewer = replace(coding, offset=coding.offset[chosen], step=coding.step[chosen])
        state = select_columns(self.state, np.array([*range(D + 1), *targets]))
        names = self.prepared.target_names
        names = names and tuple(names[k] for k in chosen)
        kept = replace(self.prepared.pipeline, coding=fewer, target_names=names)
        ridges = tuple(self.ridges[k] for k in chosen) if self.ridges else ()
        prepared = replace(self.prepared, pipeline=kept)
        return replace(self, prepared=prepared, state=state, ledger=self.ledger.copy(), ridges=ridges)

    def solve(self, *ridges: float, threads: Threads | None = None) -> Model:
        """The model at this lambda; of several, or of all where none is named, at the one that GCV likes best. A lambda
        that is the model's own stands for those of its outputs."""
        for ridge in ridges:
            self.prepared.recipe.with_(ridge=ridge)  # refuses what cannot be a penalty
        with _lent(threads) as pool:
            pipeline = self.prepared.pipeline
            equations = NormalEquations.from_state(
                self.state, pipeline.map, pipeline.coding, unrounded=pipeline.unrounded
            )
            solver = RidgeSolver(equations, pool)
            if len(ridges) == 1:
                own = self.ridges if ridges[0] == self.ridge and self.ridges else ridges
                return self._model(solver.solve_each(np.array(own)), {})
            path = GcvPath(solver, walked_outputs(self.prepared.coding))
            for ridge in ridges:
                path.consider(ridge)
            if not ridges:
                path.choose(FIRST_RIDGE)
        assert path.weights is not None
        return self._model(path.weights, {"lambda_path": path.table()})

    def _model(self, weights: Weights, facts: dict[str, Any]) -> Model:
        facts = {
            "rows": self.rows, "dropped": self.dropped, "statistics_digest": self.digest(), "holdout": None, **facts,
        }  # fmt: skip
        return self.prepared.trained(weights, self.calibration, self.ledger, facts)

    def remember(self, event: str, rows: int) -> None:
        """Write one line of history; it stays with the model, and names no shard."""
        history = [*self.prepared.metadata.get("history", ()), {"event": event, "rows": rows, "rows_in": self.rows}]
        self.prepared = self.prepared.with_metadata(history=history)


def prepared_of(model: Model) -> UntrainedModel:
    """The model without its weights, and with what stays true of its statistics."""
    metadata = {name: model.metadata[name] for name in CARRIED if name in model.metadata}
    if "history" not in metadata:
        first = {"event": "train", "rows": model.metadata.get("rows"), "holdout": model.metadata.get("holdout")}
        metadata["history"] = [first]
    return UntrainedModel(model.recipe, model.pipeline, metadata)


def save_prepared(prepared: UntrainedModel, path: str | Path, *, overwrite: bool = False) -> None:
    """Write what is fixed before any pass, so that other sites start from the same map."""
    document, arrays = prepared.to_parts()
    write_archive(path, kind=PREPARED, documents={PREPARED: document}, arrays={"arrays": arrays}, overwrite=overwrite)


def load_prepared(path: str | Path) -> UntrainedModel:
    """From a prepared archive; a model or statistics will do as well."""
    archive = read_archive(path)
    with content_errors(path, InputError):
        if archive.kind == MODEL:
            return prepared_of(Model.load(path))
        if archive.kind not in (PREPARED, STATISTICS):
            raise MismatchError(f"{path} is a {archive.kind} archive, and a prepared archive is needed.")
        document = archive.document(archive.kind)
        return UntrainedModel.from_parts(
            document if archive.kind == PREPARED else document["prepared"], archive.arrays("arrays")
        )


def select_columns(state: GramState, keep: np.ndarray) -> GramState:
    """The sums of some columns of the block (increasing numbers), as if the others had never been there."""
    old, new = state.layout, Layout(len(keep))
    totals = np.zeros(new.length, state.totals.dtype)
    for number, j0 in enumerate(new.starts):
        panel = new.panel(totals, number)
        for j in range(len(panel)):
            column = keep[j0 + j]
            source = old.panel(state.totals, column // old.panel_width)
            first = old.starts[column // old.panel_width]
            panel[j, j:] = source[column - first, keep[j0 + j :] - first]
    return GramState(new, totals, state.rows)


def _gram(prepared: UntrainedModel) -> Gram:
    return Gram(prepared.scaling, prepared.map, prepared.coding, DeferredProduct(prepared.map.precision.key))


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Say whose rows a refusal of the ledger is about."""
    try:
        yield
    except MismatchError as error:
        raise MismatchError(f"{name}: {error}") from None


@contextmanager
def _lent(threads: Threads | None) -> Iterator[Threads]:
    if threads is not None:
        yield threads
        return
    with Threads() as own:
        yield own
