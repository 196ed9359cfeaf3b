"""Tables larger than memory: written quickly, in chunks that threads make side by side, and read with nothing done.

Every value is one of 1,024, as measurements of three digits have: about ten bits of information in 32, so that codecs
have something to find, as they have in real tables. The same number gives the same chunk.

``python -m benchlib.bare PATH THREADS`` reads a table and prints the seconds: in a plain loop, as its library does it
(0 threads), or with so many threads side by side.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

from benchlib.tables import bends

LEVELS = 1024
NOISE = 0.3
GROUPS = 5  # row groups in a file of parquet


def block(number: int, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """A chunk: inputs between -2 and 2 in steps of 1/256, and a function of some of them with noise."""
    rng = np.random.default_rng([23, number])
    steps = rng.integers(0, LEVELS, (rows, columns), dtype=np.uint16)
    X = np.linspace(-2, 2, LEVELS, endpoint=False, dtype=np.float32)[steps]
    return X, (bends(X) + NOISE * rng.standard_normal(rows, dtype=np.float32)).astype(np.float32)


def spans(rows: int, chunk: int) -> list[tuple[int, int]]:
    return [(start, min(start + chunk, rows)) for start in range(0, rows, chunk)]


def side_by_side(work: Callable[[int], object], count: int, threads: int) -> None:
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        for _ in pool.map(work, range(count)):
            pass


def write_zarr(path: Path, rows: int, columns: int, chunk: int, threads: int) -> None:
    """As zarr does by default: chunks of rows, compressed by zstd."""
    group, bands = zarr.open_group(str(path), mode="w"), spans(rows, chunk)
    X = group.create_array("X", shape=(rows, columns), chunks=(chunk, columns), dtype="float32")
    y = group.create_array("y", shape=(rows,), chunks=(chunk,), dtype="float32")

    def write(number: int) -> None:
        start, stop = bands[number]
        X[start:stop], y[start:stop] = block(number, stop - start, columns)

    side_by_side(write, len(bands), threads)


def write_parquet(path: Path, rows: int, columns: int, chunk: int, threads: int) -> None:
    """As pyarrow does by default (dictionaries, snappy): a folder of files, each of a few row groups."""
    path.mkdir(parents=True)
    bands = spans(rows, chunk)
    names = [*(f"x{j}" for j in range(columns)), "y"]
    schema = pa.schema([(name, pa.float32()) for name in names])

    def write(file: int) -> None:
        with pq.ParquetWriter(path / f"part-{file:05}.parquet", schema) as writer:
            for number in range(GROUPS * file, min(GROUPS * (file + 1), len(bands))):
                start, stop = bands[number]
                X, y = block(number, stop - start, columns)
                arrays = [pa.array(column) for column in (*np.ascontiguousarray(X.T), y)]
                writer.write_table(pa.table(arrays, schema=schema), row_group_size=chunk)

    side_by_side(write, -(-len(bands) // GROUPS), threads)


def files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()]


def drop_all_pages(path: Path) -> None:
    """Let the next reader find none of the table in memory."""
    from streamrf.data.locations import drop_pages

    os.sync()  # pages that are not written yet stay
    for each in files(path):
        drop_pages(str(each))


# -- reading


def read_zarr(path: Path, threads: int) -> int:
    group = zarr.open_group(str(path), mode="r")
    X, y = group["X"], group["y"]
    bands = spans(X.shape[0], X.chunks[0])

    def read(number: int) -> None:
        start, stop = bands[number]
        _ = X[start:stop], y[start:stop]

    side_by_side(read, len(bands), threads)
    return X.shape[0]


def read_parquet(path: Path, threads: int) -> int:
    found: Sequence[Path] = sorted(path.glob("*.parquet"))
    rows = [0] * len(found)

    def read(number: int) -> None:
        file = pq.ParquetFile(found[number])
        for group in range(file.num_row_groups):
            rows[number] += len(file.read_row_group(group, use_threads=not threads))

    side_by_side(read, len(found), threads)
    return sum(rows)


def read_all(path: Path, threads: int) -> int:
    """Rows of a table, every one of them decoded."""
    return (read_zarr if path.suffix == ".zarr" else read_parquet)(path, threads)


if __name__ == "__main__":
    start = time.perf_counter()
    count = read_all(Path(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps({"rows": count, "seconds": time.perf_counter() - start}))
