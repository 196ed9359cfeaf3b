"""Each kind of part can be added from outside: one class, which the rest of the package then uses by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from commands import FAST, done
from readers_conformance import BatchReaderConformance
from sources_conformance import SourceConformance

from streamrf.data.columns import Choice
from streamrf.data.locations import opened
from streamrf.data.open import open_source
from streamrf.data.readers.arrays import as_matrix, as_targets, set_arrays
from streamrf.data.readers.base import BatchReader, RowReader, silent
from streamrf.data.source import Span, Spec, even_spans
from streamrf.support.errors import DataError

# -- readers


class ToySource(RowReader):
    """A folder ``NAME.toy`` with the arrays as raw bytes and a note about them."""

    format, endings, markers = "toy", (".toy",), ("toy.json",)

    def __init__(self, location: str, choice: Choice) -> None:
        self.location, self._choice = location, choice
        self._note = json.loads((Path(location) / "toy.json").read_text())
        y = None if choice.need_targets is False else self._array(choice.y)
        if y is None and choice.need_targets:
            raise DataError(f"{location} has no targets")
        set_arrays(self, self._array(choice.x), y)

    def _array(self, name: str) -> Any:
        if name not in self._note["arrays"]:
            return None
        dtype, shape = self._note["arrays"][name]
        return np.fromfile(Path(self.location) / f"{name}.raw", dtype).reshape(shape)

    def chunks(self) -> Sequence[Span]:
        return even_spans(self.n_rows, self._note["chunk_rows"])

    def _features(self, span: Span) -> np.ndarray:
        return as_matrix(self._array(self._choice.x)[span.start : span.stop], self.x_dtype)

    def _targets(self, span: Span) -> np.ndarray:
        return as_targets(self._array(self._choice.y)[span.start : span.stop], self.y_dtype, "y")

    def read_bytes(self, span: Span) -> int:
        return 2 * self.block_bytes(span) + 64 * len(span)

    def spec(self) -> Spec:
        return {"data": self.location, **self._choice.arrays_to_json()}


def write_toy(folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> Path:
    folder.mkdir()
    arrays = {name: values for name, values in (("X", X), ("y", y)) if values is not None}
    for name, values in arrays.items():
        values.tofile(folder / f"{name}.raw")
    kinds = {name: (values.dtype.str, values.shape) for name, values in arrays.items()}
    (folder / "toy.json").write_text(json.dumps({"chunk_rows": chunk_rows, "arrays": kinds}))
    return folder


class TestToySource(SourceConformance):
    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        return {"data": write_toy(folder / "t.toy", X, y, chunk_rows)}


def test_a_reader_from_outside_is_opened_by_its_ending_and_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 3))
    toy = write_toy(tmp_path / "t.toy", X, X @ [1.0, 2.0, 3.0], 100)
    assert isinstance(open_source(toy), ToySource)
    assert isinstance(open_source([toy, toy]).members()[1], ToySource)
    renamed = toy.rename(tmp_path / "anything")
    assert isinstance(open_source(renamed), ToySource)  # by the file that marks it
    trained = done("train", renamed, *FAST, "--out", tmp_path / "t.model", "--json").json
    assert trained["rows"] == 600
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", X @ [1.0, 2.0, 3.0])
    same = done("train", tmp_path / "X.npy", *FAST, "--out", tmp_path / "npy.model", "--json").json
    assert trained["statistics_digest"] == same["statistics_digest"]
    done("convert", renamed, tmp_path / "t.zarr", "--quiet")
    assert np.array_equal(open_source(tmp_path / "t.zarr").read(Span(0, 600)).X, X)


class ToyBatches(BatchReader):
    """Lines of numbers with a mark between them, the first with the names of the columns."""

    format, endings, compressed = "toytext", (".toytext",), True
    options = frozenset({"mark"})

    def __init__(self, location: str, *, mark: str = ":", progress: Any = silent) -> None:
        self.location = location
        with opened(location) as stream:
            names, *rows = [line.split(mark) for line in stream.read().decode().splitlines()]
        if not rows:
            raise DataError(f"{location} has no rows")
        columns = (np.array(column, float) for column in zip(*rows, strict=True))
        self._table = pa.table(dict(zip(names, columns, strict=True)))
        self.schema, self.n_rows = self._table.schema, len(rows)
        progress(self.n_rows)

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        return iter(self._table.select(names).to_batches())


class TestToyBatches(BatchReaderConformance):
    format = "toytext"
    has_gaps = has_text = False

    def write(self, path: Path, table: pa.Table) -> None:
        rows = [table.column_names, *(map(repr, row.values()) for row in table.to_pylist())]
        path.write_text("".join(":".join(row) + "\n" for row in rows))


def test_a_table_reader_from_outside_is_trained_on_through_parquet(tmp_path: Path) -> None:
    (tmp_path / "t.toytext").write_text("a:b:y\n1:2:3\n4:5:6\n")
    assert open_source(tmp_path / "t.toytext").read(Span(0, 2)).X.tolist() == [[1, 2], [4, 5]]
    (tmp_path / "m.toytext").write_text("a/b/y\n1/2/3\n4/5/6\n")
    assert open_source(tmp_path / "m.toytext", mark="/").feature_names == ("a", "b")
    done("convert", tmp_path / "t.toytext", tmp_path / "t.zarr", "--quiet")
    assert open_source(tmp_path / "t.zarr").read(Span(0, 2)).X.tolist() == [[1, 2], [4, 5]]
