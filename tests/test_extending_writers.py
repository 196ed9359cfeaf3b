"""Extending streamrf from outside the package: each section defines a toy and runs it through the real thing."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from writers_conformance import Table, Types, WriterConformance

import streamrf
from streamrf.data.writers import Columns, FileWriter, Writer
from streamrf.data.writers.base import REGISTRY

# -- writers: a format of its own


class TabbedRows(Writer):
    """Python literals with tabs between them."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 (closed by ``commit`` and ``abort``)

    def write(self, first_row: int, block: Columns) -> None:
        for row in zip(*(values.tolist() for values in block.values()), strict=True):
            self._file.write("\t".join(map(repr, row)) + "\n")

    def commit(self) -> None:
        self._file.close()

    def abort(self) -> None:
        self._file.close()


@pytest.fixture
def tabbed() -> Iterator[None]:
    """Defining the class is all it takes; afterwards the other tests must not know the format."""

    class TabbedWriter(FileWriter):
        endings = (".tsv",)
        ordered = True

        def begin(self) -> TabbedRows:
            return TabbedRows(self.place)

    yield
    assert REGISTRY.pop(("local", ".tsv")) is TabbedWriter


@pytest.mark.usefixtures("tabbed")
class TestTabbedWriter(WriterConformance):
    ending = ".tsv"

    def read(self, path: Path, columns: Types) -> Table:
        rows = [list(map(literal_eval, line.split("\t"))) for line in path.read_text(encoding="utf-8").splitlines()]
        return {name: np.array([row[j] for row in rows]).astype(dtype) for j, (name, dtype) in enumerate(columns)}


@pytest.mark.usefixtures("tabbed")
def test_predictions_go_to_a_new_format(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(300, 3))
    recipe = streamrf.Recipe(D=32, pilot="none", length_scale=2.0, kernel="gaussian")
    model = streamrf.train((X, X[:, 0]), recipe).model
    assert streamrf.predict(model, X, out=tmp_path / "p.tsv") == 300
    assert np.array_equal(np.loadtxt(tmp_path / "p.tsv"), streamrf.predict(model, X))
