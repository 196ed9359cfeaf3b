"""What goes wrong inside the processes of `faults`: pieces of rows take longer, reads fail or are slow."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin

from streamrf.data.readers.zarr import ZarrSource
from streamrf.data.source import Block, Span
from streamrf.engines import local
from streamrf.support.errors import StorageError

PIECE = 500  # rows
FINGERPRINT = 64  # rows: shorter reads are no part of a pass


@dataclass(frozen=True)
class Weather:
    """Pieces of rows take ``pause`` seconds longer; reads of ``row`` fail so many times, or take longer once."""

    folder: str  # where "begun" appears as the command begins, "started" as rows are summed, and notes of failures
    pause: float = 0.0
    row: int = 0
    failures: int = 0
    slow: float = 0.0  # seconds
    file_bytes: int = 0  # the largest file that can be written, where there is such a limit

    @property
    def place(self) -> Path:
        return Path(self.folder)


def begin(weather: Weather) -> Callable[[], None]:
    """Let it begin in this process; what is returned ends it."""
    cut, read = local.pieces, ZarrSource.read

    def slow_pieces(block: Block, span: Span, most: int = PIECE) -> Iterator[tuple[Span, Block]]:
        for piece in cut(block, span, min(most, PIECE)):
            (weather.place / "started").touch()
            time.sleep(weather.pause)
            yield piece

    def troubled_read(source: ZarrSource, span: Span) -> Block:
        if span.start <= weather.row < span.stop and len(span) > FINGERPRINT:
            if len(list(weather.place.glob("failed-*"))) < weather.failures:
                (weather.place / f"failed-{os.getpid()}-{time.monotonic_ns()}").touch()
                raise StorageError(f"rows {span.start}:{span.stop} cannot be read (so it was arranged)")
            time.sleep(weather.slow)
        return read(source, span)

    def put(pieces: Any, reading: Any) -> None:
        local.pieces = pieces
        ZarrSource.read = reading  # type: ignore[method-assign]

    put(slow_pieces, troubled_read)
    return lambda: put(cut, read)


class WeatherOnWorkers(WorkerPlugin):
    """The same on every worker, also on those that are started meanwhile."""

    name = "weather"

    def __init__(self, weather: Weather) -> None:
        self.weather = weather

    def setup(self, worker: Any) -> None:
        self._end = begin(self.weather)

    def teardown(self, worker: Any) -> None:
        self._end()


def run_command(weather: Weather, args: list[str], out: Path, err: Path) -> None:
    """A command of streamrf in this weather; the process ends with it. What it prints goes to these files."""
    from streamrf.cli import main

    for stream, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    begin(weather)
    if weather.file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (weather.file_bytes, resource.RLIM_INFINITY))
    sys.argv = ["streamrf", *args]
    (weather.place / "begun").touch()
    main()
