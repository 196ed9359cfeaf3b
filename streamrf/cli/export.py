"""`streamrf export`."""

from __future__ import annotations

from typing import Any

import click

from streamrf.cli.options import print_json


@click.command("export")
@click.argument("model", type=click.Path())
@click.option("--onnx", type=click.Path(), metavar="OUT.onnx", help="Write the whole pipeline as ONNX.")
@click.option(
    "--numpy", "script", type=click.Path(), metavar="OUT.py", help="Write a page of numpy, and OUT.npz beside it."
)
@click.option("--overwrite", is_flag=True, help="Replace files that are there already.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output, nothing else.")
def command(model: str, onnx: str | None, script: str | None, overwrite: bool, as_json: bool) -> None:  # fmt: skip
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
        print_json(written)
        return
    if onnx:
        click.echo(f"{onnx}: inputs {', '.join(written['inputs'][:8])}; outputs {', '.join(written['outputs'])}")
    if script:
        click.echo(f"{script}, with its numbers in {written['arrays']}")
