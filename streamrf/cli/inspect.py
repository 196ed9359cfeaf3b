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
    """Show what is in a model or a data set at PATH.

    \b
    Examples:
      streamrf inspect data.model
      streamrf inspect data.zarr --json
    """
    from streamrf.archive import is_archive

    document = _model(path) if is_archive(path) else _data(path, options)
    if as_json:
        print_json(document)
        return
    from streamrf.cli.display import print_table

    print_table([(name, _short(value)) for name, value in document.items()])


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items())
    if isinstance(value, float):
        return f"{value:.5g}"
    text = str(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _model(path: str) -> dict[str, Any]:
    from streamrf.model import Model
    from streamrf.training import chosen

    model = Model.load(path)
    story = model.story
    return {
        "kind": "model", "task": model.coding.task, "classes": list(model.coding.classes), "inputs": model.n_inputs,
        "feature_names": list(model.feature_names or ()), "D": model.map.n_features, "chosen": chosen(model.recipe),
        "rows": story.get("rows"), "holdout": story.get("holdout"), "seconds": story.get("seconds"),
        "memory": story.get("memory"), "data": story.get("data"), "statistics_digest": story.get("statistics_digest"),
    }  # fmt: skip


def _data(path: str, options: dict[str, Any]) -> dict[str, Any]:
    from streamrf.sources.table import type_name

    source = open_data((path,), options, need_targets=None)
    return {
        "kind": "data", "describe": source.describe(), "rows": source.n_rows, "inputs": source.n_features,
        "outputs": source.n_outputs, "dtype": type_name(source.x_dtype),
        "target_dtype": None if source.y_dtype is None else type_name(source.y_dtype),
        "feature_names": list(source.feature_names or ()), "chunks": len(source.chunks()),
        "fingerprint": source.fingerprint(),
    }  # fmt: skip
