"""Arrays of other libraries as sources: what every source must do, and what is theirs alone."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sources_conformance import ROWS, SourceConformance, make_X

from streamrf.api.inputs import Batch, is_stored, stored_source
from streamrf.data.readers.memory import ArraySource, SlicedSource, is_sliced
from streamrf.support.errors import InputError


class Given(SourceConformance):
    """Sources that are handed over as they are: ``open_source`` has no say about their targets."""

    supports_spec = False
    test_without_targets = test_targets_only_where_there_are_any = None


class TestSparseMatrices(Given):
    x_types = ("f4", "f8", "i4")
    y_kinds = ("float", "text", "two")

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        return {"data": SlicedSource(sparse.csr_array(X), y)}


def test_what_is_read_in_parts_and_what_is_not(tmp_path):
    for kept in ("rows.zarr", tmp_path, ["a.zarr", "b.zarr"], da.ones((4, 2)), ArraySource(make_X())):
        assert is_stored(kept)
    for checked in (make_X(), [[1.0, 2.0]], sparse.dok_matrix(make_X()), sparse.csr_array(make_X())):
        assert not is_stored(checked)
    assert not is_sliced(make_X())


def test_targets_beside_a_path_are_a_name(tmp_path):
    with pytest.raises(InputError, match="name of the target column"):
        stored_source(tmp_path / "rows.zarr", np.ones(5))
    with pytest.raises(InputError, match="there is no y"):
        stored_source(da.ones((4, 2)), None)


class TestBatches(Given):
    x_types = ("f4",)
    y_kinds = ("float", "text")

    def store(self, folder: Path, X: np.ndarray, y: np.ndarray | None, chunk_rows: int) -> dict[str, Any]:
        return {"data": Batch(ArraySource(X, y, chunk_rows=chunk_rows), 0)}

    def handed_over(self, source: Any) -> int:
        return 8 * ROWS  # the rest are views
