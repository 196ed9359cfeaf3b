"""What must agree before sums are added or subtracted, and what can be seen to be wrong afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streamrf.data.columns import Columns
from streamrf.data.source import Source
from streamrf.features.targets import REGRESSION
from streamrf.models.model import UntrainedModel
from streamrf.solvers.plan import COMPILED, DEFAULT_BUDGET_SHARE, SLACK
from streamrf.statistics.gram import MAX_ROWS, GramState
from streamrf.statistics.targets import TargetScan
from streamrf.support import memory
from streamrf.support.errors import BudgetError, DataError, MismatchError, NumericalError
from streamrf.support.storage.archive import read_archive
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


def check_room_for(state: GramState, more: int, name: str) -> None:
    if state.rows + more > MAX_ROWS:
        raise NumericalError(f"{name}: {state.rows + more:,} rows, and exact sums hold up to {MAX_ROWS:,}")


def check_possible(prepared: UntrainedModel, state: GramState, removed: str) -> None:
    """Sums that no rows can have mean that what was removed was not what had been added."""
    D, layout = prepared.map.n_features, state.layout
    sums = layout.columns(state.totals, D, D + 1)[: D + 1, 0]
    limit = float(prepared.map.precision.scale) * state.rows
    if prepared.map.precision.exact and (sums[D] != state.rows or np.abs(sums[:D]).max() > limit):
        raise MismatchError(
            f"what is left after removing {removed} are sums that no rows have: it has changed since it was added,"
            " so nothing was removed; retrain on the rest"
        )


def check_budget(paths: Sequence[str | Path], budget: int | None, *, states: int) -> None:
    """Refuse now what would not fit: so many states at once, and the matrix of the solve, which is twice a state."""
    sizes = [read_archive(path).files.get("statistics.safetensors") for path in paths]
    largest = max((size.n_bytes for size in sizes if size), default=0)
    reserved = memory.resident() + COMPILED
    allowed = budget or reserved + int(DEFAULT_BUDGET_SHARE * memory.available())
    projected = reserved + int(SLACK * (states + 2) * largest)
    if projected > allowed:
        raise BudgetError(
            f"this is projected to need {format_bytes(projected)} ({states} statistics of {format_bytes(largest)} and"
            f" a matrix of twice that), the budget is {format_bytes(allowed)}: raise --memory"
        )
