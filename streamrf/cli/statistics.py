"""What the commands share that work on statistics: their options, the lambda, and what they write and say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from streamrf.cli.cluster import cluster_engine, cluster_options, pop_cluster
from streamrf.cli.options import _stack, checkpoint_options, make_settings, memory_option, print_json, run_options

pass_options = _stack(memory_option, checkpoint_options, cluster_options, run_options)

place_options = _stack(
    click.option("--out", type=click.Path(), help="Where the result goes; in place of what was read by default."),
    click.option("--overwrite", is_flag=True, help="Replace what is at --out already."),
)

lambda_options = _stack(
    click.option("--lambda", "ridge", type=float, help="Another ridge penalty; that of the model by default."),
    click.option("--retune", is_flag=True, help="Choose lambda anew by generalised cross-validation (GCV)."),
)

ridges_option = click.option(
    "--lambda",
    "ridge",
    type=float,
    multiple=True,
    help="Ridge penalty; generalised cross-validation (GCV) chooses among several, or among all by default.",
)

rows_option = click.option(
    "--rows", multiple=True, metavar="START:STOP", help="Only these rows of one shard, STOP excluded; may be repeated."
)
nan_option = click.option(
    "--nan", type=click.Choice(["error", "drop"]), help="What to do with rows that have NaN; as in training by default."
)


@contextmanager
def working(options: dict[str, Any], out: Path) -> Iterator[Any]:
    """Threads, a cluster if there is one, and a checkpoint that is cleared when all ends well."""
    from streamrf.cli.display import make_reporter
    from streamrf.support.threads import Threads
    from streamrf.training.update.changes import Work, clear_checkpoint

    settings, cluster = make_settings(options, out), pop_cluster(options)
    reporter = make_reporter(quiet=options.pop("quiet") or options["as_json"])
    with (
        Threads(settings.threads) as threads,
        cluster_engine(cluster, reporter, threads=threads.count, memory=settings.memory) as settings.engine,
    ):
        yield Work(threads, settings, reporter)
    clear_checkpoint(settings)


def place(read: str, options: dict[str, Any]) -> tuple[Path, bool]:
    """Where the result goes, and whether something there may be replaced."""
    from streamrf.support.storage.archive import check_target

    out, overwrite = options.pop("out"), options.pop("overwrite")
    target, replaces = Path(out or read), overwrite or out is None
    check_target(target, replaces)
    return target, replaces


def parse_rows(texts: tuple[str, ...], source: Any) -> Any:
    """The rows that --rows names, or None for all."""
    from streamrf.statistics.rowset import RowSet
    from streamrf.support.errors import InputError

    if not texts:
        return None
    if len(source.members()) > 1:
        raise InputError(f"--rows is about the rows of one shard, and {len(source.members())} are named")
    found = [re.fullmatch(r"(\d+):(\d+)", text) for text in texts]
    spans = [(int(match[1]), int(match[2])) for match in found if match]
    if len(spans) < len(texts) or any(not a < b <= source.n_rows for a, b in spans):
        raise InputError(f"--rows {' '.join(texts)}: START:STOP within the {source.n_rows:,} rows is wanted")
    return RowSet(spans)


def solve_again(statistics: Any, options: dict[str, Any], threads: Any) -> Any:
    """A model at the lambda that the options ask for; None where there never was a model."""
    from streamrf.support.errors import InputError

    ridge, retune = options["ridge"], options["retune"]
    if ridge is not None and retune:
        raise InputError("--lambda names a penalty and --retune looks for one: give one of them")
    if statistics.ridge is None:
        if ridge is not None or retune:
            raise InputError(f"{statistics.name} holds statistics and no weights: use `streamrf solve` on the result")
        return None
    return statistics.solve(*(() if retune else (statistics.ridge if ridge is None else ridge,)), threads=threads)


def write(statistics: Any, model: Any, out: Path, overwrite: bool) -> None:
    """A model with its statistics beside it, or the statistics alone."""
    if model is None:
        statistics.save(out, overwrite=overwrite)
    else:
        model.save(out, state=statistics.state, overwrite=overwrite)


def report(statistics: Any, model: Any, out: Path, **facts: Any) -> dict[str, Any]:
    """The `--json` object."""
    found: dict[str, Any] = {"statistics" if model is None else "model": str(out), **facts}
    found |= {"rows": statistics.rows, "shards": len(statistics.ledger.shards()), "dropped": statistics.dropped}
    if model is not None:
        found |= {"lambda": model.weights.ridge, "lambda_path": model.metadata.get("lambda_path")}
    return found | {"exact": statistics.exact, "statistics_digest": statistics.digest()}


def show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    from streamrf.cli.display import print_table

    print_table([(name.replace("_", " "), _short(value)) for name, value in found.items() if value is not None])
    if not found.get("exact", True):
        click.echo("float features: their sums are rounded, so this is right to rounding and not bit for bit", err=True)


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} tried"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
