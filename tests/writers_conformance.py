"""What every writer must do. A format subclasses ``WriterConformance`` and says how it is read back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrf.data.source import Span
from streamrf.data.writers import UNKNOWN, TableWriter, open_part, open_shared_writer, open_writer
from streamrf.support.errors import ExistsError, InputError, StorageError

N = 100
Table = dict[str, np.ndarray]
Types = list[tuple[str, Any]]
COLUMNS: Types = [("label", "U12"), ("score", "f4"), ("chance", "f8"), ("code", "i8"), ("sure", "?")]
ONE: Types = [("prediction", np.dtype("f8"))]


def make_table(columns: Types, n: int = N) -> Table:
    rng = np.random.default_rng(0)
    labels = np.array(["yes", "no", 'a "b", c', "ä\nö"])
    made: dict[str, Callable[[], np.ndarray]] = {
        "U": lambda: rng.choice(labels, n),
        "f": lambda: rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n),
        "i": lambda: rng.integers(-(2**60), 2**60, n),
        "b": lambda: rng.normal(size=n) > 0,
    }
    return {name: made[np.dtype(dtype).kind]().astype(dtype) for name, dtype in columns}


def rows_of(table: Table, start: int, stop: int) -> Table:
    return {name: values[start:stop] for name, values in table.items()}


def fill(writer: TableWriter, table: Table, *spans: tuple[int, int], then: Callable[[], Any] = int) -> None:
    with writer:
        for start, stop in spans:
            writer.write(start, rows_of(table, start, stop))
        then()


def interrupt() -> None:
    raise KeyboardInterrupt


class WriterConformance:
    """``read`` reads a finished output back; the rest is the same for all."""

    ending: str
    columns: Types = COLUMNS
    ordered = True  # whether blocks must come in row order, and their number need not be known

    def read(self, path: Path, columns: Types) -> Table:
        raise AssertionError("a subclass says how")

    def open(self, path: Path, n_rows: int, columns: Types, **options: Any) -> TableWriter:
        return open_writer(path, n_rows, columns, **options)

    def check(self, path: Path, table: Table, columns: Types) -> None:
        found = self.read(path, columns)
        for name, dtype in columns:
            assert found[name].dtype == np.dtype(dtype)
            assert np.array_equal(found[name], table[name]), name
        assert os.listdir(path.parent) == [path.name]

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / f"out{self.ending}"

    @pytest.mark.parametrize("step", [1, 7, 32, 50, N])
    def test_what_is_written_reads_back_equal(self, path: Path, step: int) -> None:
        table = make_table(self.columns)
        with self.open(path, N, self.columns) as writer:
            assert not path.exists()
            assert writer.ordered == self.ordered
            for start in range(0, N, step):
                writer.write(start, rows_of(table, start, start + step))
        self.check(path, table, self.columns)

    def test_labels(self, path: Path) -> None:
        table = make_table([("label", "U8")])
        fill(self.open(path, N, [("label", np.dtype("U8"))]), table, (0, N))
        self.check(path, table, [("label", "U8")])

    def test_arrays_may_be_reused_after_each_block(self, path: Path) -> None:
        table, block = make_table(ONE), np.empty(10)
        with self.open(path, N, ONE) as writer:
            for start in range(0, N, 10):
                block[:] = table["prediction"][start : start + 10]
                writer.write(start, {"prediction": block})
            block[:] = np.nan
        self.check(path, table, ONE)

    def test_blocks_in_another_order(self, path: Path) -> None:
        table = make_table(self.columns)
        if self.ordered:
            with pytest.raises(InputError, match="row 10 comes next, not 20"):
                fill(self.open(path, N, self.columns), table, (0, 10), (20, 30))
            assert os.listdir(path.parent) == []
            return
        starts = np.random.default_rng(3).permutation(np.arange(0, N, 9)).tolist()
        fill(self.open(path, N, self.columns), table, *((start, start + 9) for start in starts))
        self.check(path, table, self.columns)

    def test_an_unknown_number_of_rows(self, path: Path) -> None:
        table = make_table(self.columns)
        if not self.ordered:
            with pytest.raises(InputError, match="number of rows beforehand"):
                self.open(path, UNKNOWN, ONE)
            return
        fill(self.open(path, UNKNOWN, self.columns), table, *((start, start + 9) for start in range(0, N, 9)))
        self.check(path, table, self.columns)

    @pytest.mark.parametrize("when", ["at once", "later"])
    def test_an_error_leaves_nothing_behind(self, path: Path, when: str) -> None:
        writer = self.open(path, N, self.columns)
        with pytest.raises(KeyboardInterrupt):
            fill(writer, make_table(self.columns), *([(0, 40)] if when == "later" else []), then=interrupt)
        assert os.listdir(path.parent) == []

    def test_an_existing_output(self, path: Path) -> None:
        old, new = make_table(ONE), {"prediction": np.arange(N, dtype=float)}
        fill(self.open(path, N, ONE), old, (0, N))
        with pytest.raises(ExistsError, match="already exists"):
            self.open(path, N, ONE)
        with pytest.raises(ZeroDivisionError), self.open(path, N, ONE, overwrite=True):
            raise ZeroDivisionError
        self.check(path, old, ONE)
        fill(self.open(path, N, ONE, overwrite=True), new, (0, N))
        self.check(path, new, ONE)

    def test_an_output_that_appears_meanwhile_is_kept(self, path: Path) -> None:
        with pytest.raises(ExistsError):
            fill(self.open(path, N, ONE), make_table(ONE), (0, N), then=lambda: path.write_text("mine"))
        assert path.read_text() == "mine"
        assert os.listdir(path.parent) == [path.name]

    def test_a_directory_that_is_no_store_is_never_replaced(self, path: Path) -> None:
        path.mkdir()
        (path / "thesis.txt").touch()
        with pytest.raises(ExistsError, match="not replaced"):
            self.open(path, N, ONE, overwrite=True)

    def test_every_row_must_be_written_once(self, path: Path) -> None:
        table = make_table(ONE)
        with pytest.raises(InputError, match=r"100 rows once, but row 60"):
            fill(self.open(path, N, ONE), table, (0, 60))
        if not self.ordered:
            with pytest.raises(InputError, match="row 60"):
                fill(self.open(path, N, ONE), table, (0, 60), (40, 80))
        assert os.listdir(path.parent) == []

    def test_a_place_that_cannot_be(self, path: Path) -> None:
        path.parent.joinpath("file").touch()
        with pytest.raises(StorageError), self.open(path.parent / "file" / path.name, N, ONE):
            pass


class SharedWriterConformance(WriterConformance):
    """A format that many processes write at once, each its own parts; ``step`` is where parts must begin and end."""

    ordered = False
    step: int | None = None

    def open(self, path: Path, n_rows: int, columns: Types, **options: Any) -> TableWriter:
        return open_shared_writer(path, n_rows, columns, **options)

    def test_an_unknown_number_of_rows(self, path: Path) -> None:
        """A cluster knows how many rows there are."""

    def test_parts_in_any_order_and_twice(self, path: Path) -> None:
        table = make_table(self.columns)
        with self.open(path, N, self.columns) as writer:
            assert writer.step == self.step
            for start, stop in [(64, 96), (0, 32), (96, N), (64, 96), (32, 64)]:
                self.write_part(writer, table, start, stop)
            writer.wrote([Span(0, 64), Span(64, N)])
        self.check(path, table, self.columns)

    def test_a_part_that_was_not_written_is_missed(self, path: Path) -> None:
        writer = self.open(path, N, self.columns)
        writer.open()
        self.write_part(writer, make_table(self.columns), 0, 32)
        writer.wrote([Span(0, 32)])
        with pytest.raises(InputError, match="but row 32"):
            writer.commit()
        writer.abort()
        assert os.listdir(path.parent) == []

    def test_a_part_that_fails_leaves_room_for_another_try(self, path: Path) -> None:
        table = make_table(self.columns)
        with self.open(path, N, self.columns) as writer:
            part = open_part(writer.spec(), [Span(0, N)])
            part.open()
            part.write(0, rows_of(table, 0, 50))
            part.abort()
            self.write_part(writer, table, 0, N)
            writer.wrote([Span(0, N)])
        self.check(path, table, self.columns)

    def test_a_late_part_does_not_bring_an_output_back(self, path: Path) -> None:
        table = make_table(self.columns)
        with pytest.raises(KeyboardInterrupt), self.open(path, N, self.columns) as writer:
            interrupt()
        with pytest.raises(StorageError, match="no such file"):
            self.write_part(writer, table, 0, N)
        assert os.listdir(path.parent) == []

    @staticmethod
    def write_part(writer: TableWriter, table: Table, start: int, stop: int) -> None:
        """As a worker does, in blocks of nine rows; the spec has gone there as JSON."""
        with open_part(json.loads(json.dumps(writer.spec())), [Span(start, stop)]) as part:
            for first in range(start, stop, 9):
                part.write(first, rows_of(table, first, min(first + 9, stop)))
