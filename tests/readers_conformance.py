"""What every reader of batches must do. A format subclasses ``BatchReaderConformance`` and says how it is written."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from streamrf.data.convert import Conversion, convert
from streamrf.data.open import open_source
from streamrf.data.readers import reader_by_ending, reader_of
from streamrf.data.readers.base import BatchReader
from streamrf.data.source import Span
from streamrf.support.errors import DataError

ROWS = 61


def make_table() -> pa.Table:
    rng = np.random.default_rng(0)
    gaps = pa.array([None if i % 7 == 0 else float(i) for i in range(ROWS)])
    columns = {"a": rng.normal(size=ROWS), "n": rng.integers(-9, 9, ROWS), "gaps": gaps, "y": rng.normal(size=ROWS)}
    return pa.table({**columns, "town": rng.choice(["Ulm", "a, b", "ä ö"], ROWS)})


class BatchReaderConformance:
    """``write`` stores a table; ``has_gaps`` and ``has_text`` say what the format can hold besides numbers."""

    format: ClassVar[str]
    has_gaps: ClassVar[bool] = True
    has_text: ClassVar[bool] = True

    def write(self, path: Path, table: pa.Table) -> None:
        raise AssertionError("a subclass says how")

    @property
    def reader(self) -> type[BatchReader]:
        found = reader_of(BatchReader, self.format)
        assert found is not None
        return found

    @property
    def table(self) -> pa.Table:
        without = [*(["gaps"] if not self.has_gaps else []), *(["town"] if not self.has_text else [])]
        return make_table().drop_columns(without)

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / f"t{self.reader.endings[0]}"
        self.write(path, self.table)
        return path

    def open(self, path: Path, **options: Any) -> BatchReader:
        return self.reader(str(path), **options)

    @staticmethod
    def gathered(reader: BatchReader, names: list[str]) -> dict[str, list[Any]]:
        return pa.Table.from_batches(reader.batches(names)).to_pydict()

    def test_it_is_found_by_each_of_its_endings(self) -> None:
        assert self.reader.endings
        for ending in self.reader.endings:
            assert reader_by_ending(BatchReader, f"some/where{ending}") is self.reader

    def test_names_and_rows_are_known_or_left_open(self, path: Path) -> None:
        reader = self.open(path)
        assert reader.schema.names == self.table.column_names
        assert reader.n_rows in (None, ROWS)
        assert str(path) in reader.location

    def test_all_columns_come_as_they_were_written_as_often_as_one_asks(self, path: Path) -> None:
        reader, names = self.open(path), self.table.column_names
        for _ in range(2):
            assert self.gathered(reader, names) == self.table.to_pydict()

    def test_columns_come_in_the_order_asked_for(self, path: Path) -> None:
        names = ["y", "a"]
        for batch in self.open(path).batches(names):
            assert batch.schema.names == names
        assert self.gathered(self.open(path), names) == self.table.select(names).to_pydict()

    def test_types_are_those_of_the_schema_in_every_batch(self, path: Path) -> None:
        reader = self.open(path)
        for batch in reader.batches(reader.schema.names):
            assert batch.schema.types == reader.schema.types

    def test_progress_hears_rows_in_order(self, path: Path) -> None:
        heard: list[int] = []
        self.open(path, progress=heard.append)
        assert heard == sorted(heard)
        assert all(0 <= rows <= ROWS for rows in heard)

    def test_a_compressed_file_has_the_same_rows_or_is_of_another_format(self, path: Path) -> None:
        packed = path.with_name(f"{path.name}.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert (reader_by_ending(BatchReader, str(packed)) is self.reader) == self.reader.compressed
        if self.reader.compressed:
            assert self.gathered(self.open(packed), self.table.column_names) == self.table.to_pydict()

    def test_a_table_without_rows_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / f"t{self.reader.endings[0]}"
        self.write(path, self.table.slice(0, 0))
        with pytest.raises(DataError):
            list(self.open(path).batches(["a"]))

    def test_it_becomes_numbers_in_zarr(self, path: Path, tmp_path: Path) -> None:
        convert(str(path), str(tmp_path / "t.zarr"), Conversion(target=["y"], features=["n", "a"]))
        found = open_source(tmp_path / "t.zarr").read(Span(0, ROWS))
        assert np.array_equal(found.X, np.stack([self.table["n"], self.table["a"]], axis=1))
        assert np.array_equal(found.y, self.table["y"])
