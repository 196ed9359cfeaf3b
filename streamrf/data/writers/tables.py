"""Arrow tables to one parquet file, in row groups of even size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES = 16 << 20  # large enough to read fast, small enough to hold a few
TEXT_BYTES = 32  # a guess at a text value


def write_tables(
    place: str | Path, schema: pa.Schema, tables: Iterable[pa.Table], rows: int, progress: Callable[[int], None]
) -> int:
    """Write tables one after the other, ``rows`` rows to a row group; the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    held: list[pa.Table] = []
    done = count = 0
    unlike = (pa.types.is_floating, pa.types.is_temporal)  # values that hardly repeat: a dictionary costs time only
    repeated = [kind.name for kind in schema if not any(test(kind.type) for test in unlike)]
    options = {"use_dictionary": repeated or False, "write_page_checksum": True}
    with pq.ParquetWriter(place, schema, **options) as writer:
        for table in tables:
            held.append(table.cast(schema))
            count += len(table)
            if count >= rows:
                whole = pa.concat_tables(held)
                full = count // rows * rows
                writer.write_table(whole.slice(0, full), row_group_size=rows)
                held, done, count = [whole.slice(full)], done + full, count - full
                progress(done)
        if count:
            writer.write_table(pa.concat_tables(held), row_group_size=rows)
            progress(done + count)
    return done + count


def storable(schema: pa.Schema, say: Callable[[str], None]) -> list[str]:
    """Names of the columns that parquet has a type for; ``say`` hears of the others, such as intervals and unions."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    others = {}
    for kind in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([kind])).close()
        except pa.ArrowNotImplementedError:
            others[kind.name] = kind.type
    if others:
        reasons = ", ".join(f"'{name}' ({kind})" for name, kind in others.items())
        say(f"left out: {reasons}, which parquet cannot hold")
    return [name for name in schema.names if name not in others]


def stored_bytes(kind: pa.DataType) -> int:
    """Of one value, about."""
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:
        return TEXT_BYTES


def group_rows(schema: pa.Schema) -> int:
    """Rows that make a row group of about 16 MB."""
    return max(1, GROUP_BYTES // max(1, sum(stored_bytes(kind) for kind in schema.types)))
