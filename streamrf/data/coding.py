"""The coding of columns for what a user names: learned where the table needs one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamrf.data.columns.document import Columns
from streamrf.data.columns.handling import Handling
from streamrf.data.open import parquet_files
from streamrf.support.progress import Reporter


def learn_coding(
    data: Any,
    handling: Handling,
    reporter: Reporter | None = None,
    *,
    rows: int | None = None,
    sample_weight: Any = None,
    **choice: Any,
) -> Columns | None:
    """The coding of the features of parquet data; None where all are numbers to be taken as they are, or not parquet.

    ``choice`` is what ``open_source`` takes: target, features, exclude, y, need_targets. With ``rows`` only about so
    many of the first rows are looked at: enough to guess how many features there will be.
    """
    paths = parquet_files(data)
    if not paths:
        return None
    from streamrf.data.columns.learning import needs_coding
    from streamrf.data.readers.frame import FirstRows
    from streamrf.data.readers.parquet_columns import Choice, feature_names, names_of, target_names
    from streamrf.data.readers.parquet_frame import ParquetFrame

    frame = ParquetFrame(paths[0] if len(paths) == 1 else f"{len(paths)} files from {paths[0]} on", paths)
    asked = Choice(**choice)
    if isinstance(sample_weight, str):
        asked = replace(asked, exclude=[*names_of(asked.exclude), sample_weight])
    targets = target_names(frame.schema.names, paths[0], asked)
    names = feature_names(frame.schema.names, paths[0], asked, targets)
    if not names or not needs_coding(frame.schema, names, handling):
        return None
    return _learned(frame if rows is None else FirstRows(frame, rows), names, handling, reporter or Reporter())


def known_choice(known: Any) -> dict[str, Any]:
    """What a model (or what was prepared for one) says about columns, as ``open_source`` takes it."""
    if known is None:
        return {}
    choice: dict[str, Any] = {"target": known.target_names}
    return choice | ({"features": known.feature_names} if known.columns is None else {"columns": known.columns})


def _learned(frame: Any, names: list[str], handling: Handling, reporter: Reporter) -> Columns:
    from streamrf.data.columns.learning import learn_columns

    reporter.started("looking at columns", frame.n_rows, 0)
    columns = learn_columns(frame, names, handling, lambda rows: reporter.advanced(rows, None))
    reporter.finished()
    reporter.note(columns.describe())
    return columns
