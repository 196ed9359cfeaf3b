"""What a model has to show: `streamrf inspect`, `report` and `export`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamrf.cli import options as shared
from streamrf.cli.display import say

if TYPE_CHECKING:
    from streamrf.statistics.rowset import Ledger


@click.command("inspect")
@click.argument("path", type=click.Path())
@shared.data_options
@shared.json_option
def inspect_command(path: str, as_json: bool, **options: Any) -> None:
    """Show what is in a model, statistics, a prepared recipe or a data set at PATH.

    \b
    Examples:
      streamrf inspect data.model
      streamrf inspect data.zarr --json
    """
    from streamrf.support.storage.archive import is_archive

    document = _archive(path) if is_archive(path) else _data(path, options)
    if as_json:
        shared.print_json(document)
        return
    from streamrf.cli.display import print_table
    from streamrf.training.pilot.choice import learning_rows, member_rows

    learned = learning_rows(document.pop("learning", None))
    if document["kind"] == "model":
        learned = [*member_rows(document.pop("members"), None), *learned]
    columns = document.pop("columns") if document["kind"] == "data" else None
    print_table([*((name, _short(value)) for name, value in document.items()), *learned])
    if columns:
        from streamrf.data.overview import ColumnOverview, overview_lines

        click.echo("\n" + "\n".join(overview_lines([ColumnOverview(**each) for each in columns])))


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


def _shards(ledger: Ledger) -> list[dict[str, Any]]:
    return [{"shard": s.label, "rows": s.rows.count, "of": s.n_rows} for s in ledger.shards().values()]


def _statistics(path: str, kind: str) -> dict[str, Any]:
    """The facts about statistics, without reading the sums, which may be large."""
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
    about = model.metadata
    return {
        "kind": "model", "task": model.coding.task, "classes": list(model.coding.classes), "inputs": model.n_inputs,
        "feature_names": list(model.feature_names or ()), "D": model.map.n_features, "chosen": chosen(model.recipe),
        "target_names": list(model.target_names or ()), "columns": model.columns.describe() if model.columns else None,
        "map": model.map.kind, "binning": about.get("binning"), "learning": about.get("learning"),
        "members": about.get("members"), "trees": about.get("trees"), "rows": about.get("rows"),
        "holdout": about.get("holdout"), "warnings": about.get("warnings", []),
        "seconds": about.get("seconds"),
        "memory": about.get("memory"), "data": about.get("data"), "statistics_digest": about.get("statistics_digest"),
        "shards": _shards(model.ledger), "history": about.get("history"),
    }  # fmt: skip


def _data(path: str, options: shared.Options) -> dict[str, Any]:
    from streamrf.data.open import raw_columns
    from streamrf.data.readers.base import type_name

    place, keeps = shared.readable_data((path,), shared.make_reading(options), shared.reporter_for(options))
    source = shared.open_data((place,) if isinstance(place, str) else tuple(place), options, need_targets=None)
    source.keeps = (*source.keeps, *keeps)
    table, found = raw_columns(place), None
    if table is not None:
        from streamrf.data.overview import overview, overview_json

        found = overview_json(overview(table, source.target_names or ()))
    return {
        "kind": "data", "describe": source.describe(), "rows": source.n_rows, "inputs": source.n_features,
        "outputs": source.n_outputs, "dtype": type_name(source.x_dtype),
        "target_dtype": None if source.y_dtype is None else type_name(source.y_dtype),
        "feature_names": list(source.feature_names or ()), "chunks": len(source.chunks()),
        "fingerprint": source.fingerprint(), "columns": found,
    }  # fmt: skip


@click.command("report")
@shared.model_argument
@click.option("--data", multiple=True, metavar="PATH", help="Rows with targets to evaluate on; may be repeated.")
@click.option("--out", type=click.Path(), help="The page to write; MODEL.html by default.")
@click.option("--png", type=click.Path(), metavar="DIR", help="Also write each picture as a PNG file to DIR.")
@shared.overwrite_option
@shared.data_options
@shared.run_options
def report_command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Write a report on MODEL: one HTML file with its pictures inside, in light and dark, that needs no network.

    --data adds errors, a learning curve and the most important inputs, from a sample of those rows. Rows that the
    model was trained on are first removed from its sums, exactly, so that their errors are hold-out errors.

    \b
    Examples:
      streamrf report data.model
      streamrf report data.model --data test.zarr --out report.html
      streamrf report data.model --data test.zarr --png pictures
    """
    from streamrf.models.model import Model
    from streamrf.reports.report import check_report, make_report
    from streamrf.support.threads import Threads

    start, out = time.monotonic(), Path(options["out"] or f"{model.rstrip('/')}.html")
    check_report(out, overwrite=options["overwrite"])
    source = shared.open_data(data, options, known=Model.load(model)) if data else None
    with Threads(options["threads"]) as threads:
        made = make_report(model, source, threads=threads)
    made.save(out, overwrite=options["overwrite"])
    if options["png"]:
        made.save_pictures(options["png"], overwrite=options["overwrite"])
    seconds = time.monotonic() - start
    if options["as_json"]:
        sections = [section.name for section in made.sections]
        shared.print_json({"report": str(out), "sections": sections, "pictures": made.pictures, "seconds": seconds})
    elif not options["quiet"]:
        say(f"{out}: {len(made.pictures)} pictures")


@click.command("export")
@shared.model_argument
@click.option("--onnx", type=click.Path(), metavar="OUT.onnx", help="Write the whole pipeline as ONNX.")
@click.option(
    "--numpy", "script", type=click.Path(), metavar="OUT.py", help="Write a page of numpy, and OUT.npz beside it."
)
@shared.overwrite_option
@shared.json_option
def export_command(model: str, onnx: str | None, script: str | None, overwrite: bool, as_json: bool) -> None:
    """Write MODEL for programs that do not have streamrf: columns, scaling, map, weights and probabilities.

    \b
    Examples:
      streamrf export data.model --onnx data.onnx
      streamrf export data.model --numpy predict_data.py
    """
    from streamrf.models.export import export_model
    from streamrf.models.model import Model
    from streamrf.support.errors import InputError

    if not (onnx or script):
        raise InputError("name a file to write: --onnx OUT.onnx or --numpy OUT.py")
    exported = export_model(Model.load(model))
    written: dict[str, Any] = {"model": model, "onnx": onnx, "numpy": script}
    if onnx:
        from streamrf.models.export.onnx_model import write_onnx

        written |= write_onnx(exported, onnx, overwrite=overwrite)
    if script:
        from streamrf.models.export.numpy_script import write_script

        written["arrays"] = str(write_script(exported, script, overwrite=overwrite))
    if as_json:
        shared.print_json(written)
        return
    if onnx:
        say(f"{onnx}: inputs {', '.join(written['inputs'][:8])}; outputs {', '.join(written['outputs'])}")
    if script:
        say(f"{script}, with its numbers in {written['arrays']}")
