"""The budget holds before the first read, and shapes of any size are arithmetic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from commands import streamrf
from tables import smooth, write_zarr

from streamrf.data.open import open_source
from streamrf.data.source import EvenSpans, Span, even_spans, touched, work_spans
from streamrf.recipe import Recipe
from streamrf.support import memory
from streamrf.support.errors import BudgetError
from streamrf.support.units import parse_bytes
from streamrf.training.run import Settings, train


def claims(path: Path, rows: int, columns: int, chunks: tuple[int, int]) -> str:
    """A table that says it is large. No chunk is stored, so a read of one is an error: nothing may be read."""
    group = zarr.open_group(str(path), mode="w")
    group.create_array("X", shape=(rows, columns), chunks=chunks, dtype="f4")
    group.create_array("y", shape=(rows,), chunks=(chunks[0],), dtype="f4")
    return str(path)


@pytest.fixture(scope="module")
def huge_chunk(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One chunk of 3.2 GB."""
    return claims(tmp_path_factory.mktemp("huge") / "t.zarr", 1_000_000, 800, (1_000_000, 800))


class TestBudget:
    @pytest.mark.parametrize("command", ["train", "plan", "prepare"])
    def test_a_chunk_above_the_budget_is_refused_before_it_is_read(
        self, huge_chunk: str, tmp_path: Path, command: str
    ) -> None:
        before = memory.peak()
        out = ("--out", tmp_path / "a") if command in ("train", "prepare") else ()
        answer = streamrf(command, huge_chunk, "--D", 100, "--memory", "1GB", "--quiet", *out)
        assert answer.code == BudgetError.exit_code, answer.err
        assert "reading one chunk of" in answer.sentence
        assert "1,000,000 rows of 800 columns" in answer.sentence
        assert memory.peak() < before + 500e6

    def test_python_too(self, huge_chunk: str) -> None:
        source = open_source(huge_chunk)
        with pytest.raises(BudgetError, match="raise `memory`"):
            train(source, Recipe(D=100), Settings(memory=parse_bytes("1GB")))

    def test_what_fits_is_read(self, tmp_path: Path) -> None:
        path = write_zarr(tmp_path / "t.zarr", *smooth(2000))
        settings = Settings(memory=parse_bytes("4GB"))
        assert train(open_source(path), Recipe(D=16, pilot="none"), settings).state.rows == 2000


ABSURD = {
    "6e9 rows in chunks of 150": (6_000_000_000, 4, (150, 4)),
    "1e8 columns": (1000, 100_000_000, (100, 1000)),
    "1e8 columns in a chunk each": (1000, 100_000_000, (100, 1)),
}


@pytest.mark.parametrize("command", ["inspect", "plan"])
@pytest.mark.parametrize("shape", ABSURD)
def test_absurd_shapes_are_answered_at_once(tmp_path: Path, shape: str, command: str) -> None:
    """With the shape or with one sentence; 4e7 spans in a list took minutes."""
    path = claims(tmp_path / "t.zarr", *ABSURD[shape])
    answer = streamrf(command, path, *(("--D", 100) if command == "plan" else ()))
    assert answer.code in (0, 3, 6), answer.err
    assert "Traceback" not in answer.err


class TestEvenSpans:
    @pytest.mark.parametrize(("n_rows", "step"), [(0, 3), (1, 3), (9, 3), (10, 3), (10, 100)])
    def test_as_a_tuple_would_be(self, n_rows: int, step: int) -> None:
        expected = tuple(Span(start, min(start + step, n_rows)) for start in range(0, n_rows, step))
        found = even_spans(n_rows, step)
        assert tuple(found) == expected
        assert found == expected
        assert len(found) == len(expected)
        assert found[:2] == expected[:2]
        assert [found[i] for i in range(-len(found), 0)] == list(expected)

    def test_many_chunks_are_joined_as_few_are(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = open_source(write_zarr(tmp_path / "t.zarr", *smooth(10_050), chunk=100))
        slowly = work_spans(source, 730, 1 << 30)
        monkeypatch.setattr("streamrf.data.source.MANY", 5)
        assert isinstance(quick := work_spans(source, 730, 1 << 30), EvenSpans)
        assert quick == slowly

    def test_touched_chunks(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(50):
            chunks = even_spans(1000, int(rng.integers(1, 200)))
            edges = np.sort(rng.choice(1001, 8, replace=False)).tolist()
            runs = [Span(*edges[i : i + 2]) for i in range(0, 8, 2)]
            wanted = [c for c in chunks if any(c.start < run.stop and run.start < c.stop for run in runs)]
            assert list(touched(chunks, runs)) == wanted
