"""`streamrf inspect`."""

from __future__ import annotations

from typing import Any

import click

from streamrf.cli.options import data_options, open_data, print_json


@click.command("inspect")
@click.argument("path", type=click.Path())
@data_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, nothing else.")
def command(path: str, as_json: bool, **options: Any) -> None:
    """Show what is in a model, statistics, a prepared recipe or a data set at PATH.

    \b
    Examples:
      streamrf inspect data.model
      streamrf inspect data.zarr --json
    """
    from streamrf.support.storage.archive import is_archive

    document = _archive(path) if is_archive(path) else _data(path, options)
    if as_json:
        print_json(document)
        return
    from streamrf.cli.display import print_table
    from streamrf.training.pilot.choice import learning_rows

    learned = learning_rows(document.pop("learning", None))
    print_table([*((name, _short(value)) for name, value in document.items()), *learned])


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "; ".join(map(_short, value[:5])) + (f"; and {len(value) - 5} more" if len(value) > 5 else "")
    if isinstance(value, float):
        return f"{value:.5g}"
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _archive(path: str) -> dict[str, Any]:
    from streamrf.support.storage.archive import read_archive

    kind = read_archive(path).kind
    return _statistics(path, kind) if kind in ("statistics", "prepared") else _model(path)


def _shards(ledger: Any) -> list[dict[str, Any]]:
    return [{"shard": s.label, "rows": s.rows.count, "of": s.n_rows} for s in ledger.shards().values()]


def _statistics(path: str, kind: str) -> dict[str, Any]:
    """Without reading the sums, which may be large."""
    from streamrf.statistics.rowset import Ledger
    from streamrf.support.storage.archive import read_archive
    from streamrf.training.run import chosen
    from streamrf.training.update.statistics import load_prepared

    prepared, document = load_prepared(path), read_archive(path).document(kind)
    found = {
        "kind": kind, "task": prepared.coding.task, "classes": list(prepared.coding.classes),
        "inputs": prepared.scaling.n_inputs, "feature_names": list(prepared.feature_names or ()),
        "D": prepared.map.n_features, "chosen": chosen(prepared.recipe), "digests": prepared.pipeline.digests(),
    }  # fmt: skip
    if kind == "prepared":
        return found
    facts = {name: document.get(name) for name in ("rows", "dropped", "statistics_digest")}
    return {**found, "shards": _shards(Ledger.from_json(document["ledger"])), **facts}


def _model(path: str) -> dict[str, Any]:
    from streamrf.models.model import Model
    from streamrf.training.run import chosen

    model = Model.load(path)
    story = model.metadata
    return {
        "kind": "model", "task": model.coding.task, "classes": list(model.coding.classes), "inputs": model.n_inputs,
        "feature_names": list(model.feature_names or ()), "D": model.map.n_features, "chosen": chosen(model.recipe),
        "target_names": list(model.target_names or ()), "columns": model.columns.describe() if model.columns else None,
        "map": model.map.kind, "binning": story.get("binning"), "learning": story.get("learning"),
        "rows": story.get("rows"), "holdout": story.get("holdout"), "seconds": story.get("seconds"),
        "memory": story.get("memory"), "data": story.get("data"), "statistics_digest": story.get("statistics_digest"),
        "shards": _shards(model.ledger), "history": story.get("history"),
    }  # fmt: skip


def _data(path: str, options: dict[str, Any]) -> dict[str, Any]:
    from streamrf.data.readers.base import type_name

    source = open_data((path,), options, need_targets=None)
    return {
        "kind": "data", "describe": source.describe(), "rows": source.n_rows, "inputs": source.n_features,
        "outputs": source.n_outputs, "dtype": type_name(source.x_dtype),
        "target_dtype": None if source.y_dtype is None else type_name(source.y_dtype),
        "feature_names": list(source.feature_names or ()), "chunks": len(source.chunks()),
        "fingerprint": source.fingerprint(),
    }  # fmt: skip
