"""Every reader of batches in the package does what such readers must do."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest
from readers_conformance import BatchReaderConformance


class TestCsv(BatchReaderConformance):
    format = "csv"

    def write(self, path: Path, table: pa.Table) -> None:
        pa.csv.write_csv(table, path)


class TestJsonLines(BatchReaderConformance):
    format = "jsonl"

    def write(self, path: Path, table: pa.Table) -> None:
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


@pytest.mark.parametrize("stream", [False, True])
class TestArrow(BatchReaderConformance):
    format = "arrow"

    @pytest.fixture(autouse=True)
    def kind(self, stream: bool) -> None:
        self._open = pa.ipc.new_stream if stream else pa.ipc.new_file

    def write(self, path: Path, table: pa.Table) -> None:
        with self._open(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=20)
