"""Forgetting in the strict sense: everything that was chosen with the shard is chosen again without it."""

from __future__ import annotations

from collections.abc import Callable

from streamrf.data.source import Source
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.statistics.rowset import Ledger, RowSet, ledger_of
from streamrf.support.errors import InputError, MismatchError
from streamrf.training.run import Trained, Training
from streamrf.training.update.changes import Work, rows_in


def retrain(
    model: Model, stays: Source, leaves: Source | None, work: Work, recoded: Callable[[], Source] | None = None
) -> tuple[Trained, int]:
    """The model that the same request would have made of the shards that stay, and how many rows are gone.

    Shards are compared with the ledger as the model codes their columns. ``recoded`` then opens those that stay with a
    coding that is learned from them alone; without it they are trained on as they are.
    """
    gone = _gone(model.ledger, ledger_of(stays, RowSet([(0, stays.n_rows)])))
    if not gone:
        raise InputError("every shard of the model is among those that stay: there is nothing to forget")
    if leaves is not None:
        _check_named(gone, ledger_of(leaves, rows_in(model.ledger, leaves)))
    if "asked" not in model.metadata:
        raise InputError("this model does not say how it was asked for: retrain on the shards that stay")
    if model.metadata.get("data", {}).get("weighted") and not stays.has_weights:
        raise InputError("this model was trained on rows with weights: retrain on the shards that stay, with theirs")
    recipe = Recipe.from_json(model.metadata["asked"])
    source = recoded() if recoded else stays
    trained = Training(source, recipe, work.settings, work.reporter, work.threads).run()
    return trained, gone.count


def _gone(before: Ledger, stays: Ledger) -> Ledger:
    """What is in the model and not among what stays; anything among it that was never in is refused."""
    rest = before.copy()
    try:
        rest.remove_all(stays)
    except MismatchError as error:
        raise MismatchError(f"--data names more than the model was trained on: {error}") from None
    return rest


def _check_named(gone: Ledger, named: Ledger) -> None:
    if gone == named:
        return
    lost = sorted(shard.label for key, shard in gone.shards().items() if not named.rows(key))
    kept = sorted(shard.label for key, shard in named.shards().items() if not gone.rows(key))
    if lost:
        raise MismatchError(f"{lost[0]} is in the model and neither to be forgotten nor among --data: name it there")
    raise MismatchError(f"{kept[0] if kept else 'a shard'} is to be forgotten, and among --data too: take it out there")
