"""`streamrf importance`: which columns a model's predictions depend on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from streamrf.cli import options as shared
from streamrf.cli.display import say

if TYPE_CHECKING:
    from streamrf.models.model import Model
    from streamrf.reports.importance import Dependence, Importance

SHOWN = 30  # columns in a terminal


@click.command("importance")
@shared.model_argument
@shared.shards_argument
@click.option("--rows", type=click.IntRange(min=2), default=5000, show_default=True,
              help="Size of the sample that is shuffled.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Shuffles of each column.")
@click.option("--partial", multiple=True, metavar="COLUMN",
              help="Also show how the mean prediction follows this column; repeat for more.")  # fmt: skip
@click.option("--plot", type=click.Path(), metavar="FILE", help="Draw the importances: a .png, .svg or .pdf file.")
@click.option("--seed", type=int, default=0, show_default=True, help="Another number draws other rows and shuffles.")
@shared.overwrite_option
@shared.data_options
@shared.run_options
def importance_command(model: str, data: tuple[str, ...], **options: Any) -> None:
    """Show how much worse MODEL predicts DATA when one column is shuffled, the most important column first.

    All codes of a column (the levels of a category, the parts of a date) are shuffled together. Columns that tell the
    same share their importance. Use rows that the model was not trained on, with known targets.

    \b
    Examples:
      streamrf importance data.model test.parquet
      streamrf importance data.model test.parquet --partial price --partial colour
      streamrf importance data.model test.parquet --rows 20000 --repeats 10 --plot importance.png
    """
    from streamrf.models.model import Model
    from streamrf.reports.importance import measure_importance
    from streamrf.reports.plots import check_picture, save
    from streamrf.support.threads import Threads

    start, plot = time.monotonic(), options["plot"]
    if plot:
        check_picture(plot, overwrite=options["overwrite"])
    loaded = Model.load(model)
    source = shared.open_data(data, options, known=loaded, reporter=shared.reporter_for(options))
    with Threads(options["threads"]) as threads:
        choice = {name: options[name] for name in ("rows", "repeats", "partial", "seed")}
        found = measure_importance(loaded, source, threads, **choice)
    if plot:
        save(found.picture().alone(), plot, overwrite=options["overwrite"])
    if options["as_json"]:
        shared.print_json({"model": model, **found.to_json(), "plot": plot, "seconds": time.monotonic() - start})
    else:
        _show(found, loaded)


def _show(found: Importance, model: Model) -> None:
    say(f"{found.rows:,} rows, {found.loss} {found.base:.5g}; how much it rises when a column is shuffled:\n")
    width = max(len(name) for name in [*found.names[:SHOWN], "column"])
    say(f"{'column'.ljust(width)}  {'rise':>10}  {'spread':>10}")
    for name, mean, spread in list(zip(found.names, found.mean, found.spread, strict=True))[:SHOWN]:
        say(f"{name.ljust(width)}  {mean:>10.4g}  {spread:>10.2g}", lines=False)
    if len(found.names) > SHOWN:
        say(f"... and {len(found.names) - SHOWN} more (--json has all)")
    for each in found.dependence:
        _show_dependence(each, model)


def _show_dependence(found: Dependence, model: Model) -> None:
    labels = [str(label) for label in model.coding.classes] or list(model.target_names or ["prediction"])
    values = told_apart(found.values)
    title = found.column + (", by its mean" if found.means else "")
    width = max(map(len, [*values, title]))
    say(f"\n{title.ljust(width)}" + "".join(f"  {label[:12]:>12}" for label in labels), lines=True)
    for value, line in zip(values, found.predictions, strict=True):
        say(value.ljust(width) + "".join(f"  {number:>12.5g}" for number in line), lines=False)
    if found.means:
        say(
            f"The model sees '{found.column}' as the mean of the target for each value, drawn towards that of all rows"
            " where a value has few rows or values differ little. These means are shown, and not the values."
        )


def told_apart(values: Sequence[object]) -> list[str]:
    """As text, with as many digits as tell numbers apart that lie close together."""
    for digits in range(5, 13):
        texts = [f"{value:.{digits}g}" if isinstance(value, float) else str(value) for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts
