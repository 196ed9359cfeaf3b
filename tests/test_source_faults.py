"""What is wrong with data is said in one clear sentence."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from sources_conformance import COLUMNS, ROWS, make_X, make_y, write_parquet, write_zarr

from streamrf.data.open import open_source
from streamrf.data.source import Span
from streamrf.support.errors import DataError, InputError, StorageError


class TestWhatIsWrong:
    def test_no_such_path(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="does not exist"):
            open_source(tmp_path / "none.zarr")
        with pytest.raises(StorageError, match="nothing matches"):
            open_source(str(tmp_path / "*.parquet"))

    def test_unknown_formats(self, tmp_path: Path) -> None:
        (tmp_path / "t.libsvm").write_text("1 1:2\n")
        with pytest.raises(DataError, match=r"streamrf convert .*t\.libsvm .*t\.parquet"):
            open_source(tmp_path / "t.libsvm")
        (tmp_path / "t.thing").write_text("a,b\n1,2\n")
        with pytest.raises(DataError, match="zarr, parquet, npy"):
            open_source(tmp_path / "t.thing")
        with pytest.raises(DataError, match="holds no files of these formats"):
            open_source(tmp_path)
        np.savez(tmp_path / "t.npz", X=make_X())
        with pytest.raises(DataError, match="streamrf convert"):
            open_source(tmp_path / "t.npz")
        with pytest.raises(InputError, match="float"):
            open_source(3.0)
        with pytest.raises(InputError, match="a dict is no table"):
            open_source({"path": "t"})

    def test_a_file_without_ending_is_known_by_its_bytes(self, tmp_path: Path) -> None:
        write_parquet(tmp_path / "table", make_X(), make_y("int"), 40)
        assert open_source(tmp_path / "table", target="y0").n_rows == ROWS

    @pytest.mark.parametrize(
        ("X", "y", "words"),
        [
            (make_X(), make_y("int")[:-1], "97 rows.*96"),
            (np.empty((0, 3)), np.empty(0), "empty"),
            (np.empty((3, 0)), np.empty(3), "0 columns"),
            (np.zeros((4, 2, 2)), np.zeros(4), "3 dimensions"),
            (np.zeros((4, 2)), np.zeros((4, 2, 2)), r"shape \(4, 2, 2\)"),
            (np.zeros((4, 2), complex), np.zeros(4), "complex128"),
            (np.zeros((4, 2)), np.zeros(4, complex), "complex128"),
            (np.full((4, 2), "a"), np.zeros(4), "numeric"),
            (np.zeros((4, 2), "M8[s]"), np.zeros(4), "datetime64"),
        ],
    )
    @pytest.mark.parametrize("form", ["memory", "npy", "zarr"])
    def test_shapes_and_types(self, tmp_path: Path, X: np.ndarray, y: np.ndarray, words: str, form: str) -> None:
        data: Any = (X, y)
        if form == "npy":
            data = tmp_path
            np.save(tmp_path / "X.npy", X)
            np.save(tmp_path / "y.npy", y)
        if form == "zarr":
            data = tmp_path / "t.zarr"
            group = zarr.create_group(str(data), zarr_format=2)
            for name, array in (("X", X), ("y", y)):
                group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=[max(1, n) for n in array.shape])
        with pytest.raises(DataError, match=words):
            open_source(data)

    def test_one_dimension_is_one_column(self, tmp_path: Path) -> None:
        np.save(tmp_path / "X.npy", np.arange(9))
        np.save(tmp_path / "y.npy", np.arange(9)[:, None])
        source = open_source(tmp_path)
        assert (source.n_features, source.n_outputs) == (1, 1)
        assert source.read(Span(2, 5)).X.tolist() == [[2], [3], [4]]
        assert source.read_targets(Span(2, 5)).tolist() == [2, 3, 4]


class TestZarrFaults:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        write_zarr(str(tmp_path / "t.zarr"), make_X(), make_y("int"), 40)
        return tmp_path / "t.zarr"

    def test_names_what_there_is(self, path: Path) -> None:
        with pytest.raises(DataError, match=r"no array 'Y'.*'X', 'y'; did you mean 'y'.*`y`"):
            open_source(path, y="Y")
        with pytest.raises(DataError, match=r"no array 'feat'.*`x`"):
            open_source(path, x="feat")

    def test_other_names_and_a_bare_array(self, path: Path) -> None:
        zarr.open_group(str(path)).create_group("train").create_array("features", data=make_X("f8"))
        assert open_source(path, x="train/features").x_dtype == np.float64
        assert open_source(path / "X", need_targets=False).n_rows == ROWS
        with pytest.raises(DataError, match="without targets"):
            open_source(path / "X")

    @pytest.mark.parametrize("damage", ["truncated", "corrupt", "empty"])
    def test_a_damaged_chunk_is_named(self, path: Path, damage: str) -> None:
        chunk = path / "X" / "c" / "2" / "0"
        whole = chunk.read_bytes()
        chunk.write_bytes({"truncated": whole[:50], "corrupt": b"\1" * len(whole), "empty": b""}[damage])
        source = open_source(path)
        assert np.array_equal(source.read(Span(0, 80)).X, make_X()[:80])
        with pytest.raises(DataError, match=r"rows 80:97 of X in .*t.zarr is truncated or corrupt") as caught:
            source.read(Span(0, ROWS))
        assert caught.value.__cause__ is not None

    def test_a_chunk_that_may_not_be_read(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        source = open_source(path, need_targets=False)

        def refuse(*_: Any) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(zarr.Array, "__getitem__", refuse)
        with pytest.raises(StorageError, match=r"rows 0:40 of X.*permission denied"):
            source.read(Span(0, 40))

    def test_a_lost_chunk_of_features_is_an_error(self, path: Path) -> None:
        (path / "X" / "c" / "1" / "0").unlink()
        source = open_source(path)
        assert len(source.read(Span(80, ROWS))) == ROWS - 80
        with pytest.raises(DataError, match=r"no chunk for rows 40:80.*write_empty_chunks"):
            source.read(Span(60, 70))

    def test_stored_zeros_are_no_loss(self, tmp_path: Path) -> None:
        write_zarr(str(tmp_path / "z.zarr"), np.zeros((90, 3)), np.zeros(90), 40)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not open_source(tmp_path / "z.zarr").read(Span(0, 90)).X.any()

    def test_missing_targets_of_numbers_are_the_fill_value_with_one_warning(self, path: Path) -> None:
        (path / "y" / "c" / "1").unlink()
        source = open_source(path)
        with pytest.warns(UserWarning, match=r"rows 43:86.*fill value 0"):
            assert not source.read_targets(Span(43, 86)).any()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            source.read_targets(Span(0, ROWS))

    def test_missing_labels_are_an_error(self, tmp_path: Path) -> None:
        write_zarr(str(tmp_path / "t.zarr"), make_X(), make_y("text"), 40)
        (tmp_path / "t.zarr" / "y" / "c" / "1").unlink()
        with pytest.raises(DataError, match=r"y of .* no chunk for rows 40:80"):
            open_source(tmp_path / "t.zarr").read(Span(0, ROWS))

    def test_a_missing_column_chunk_is_believed(self, tmp_path: Path) -> None:
        X = make_X()
        X[40:80, 2:4] = 0
        write_zarr(str(tmp_path / "t.zarr"), X, None, 40, x_chunks=(40, 2))
        (tmp_path / "t.zarr" / "X" / "c" / "1" / "1").unlink()
        with pytest.warns(UserWarning, match="some of rows 40:80"):
            assert np.array_equal(open_source(tmp_path / "t.zarr", need_targets=False).read(Span(0, ROWS)).X, X)

    def test_a_lost_shard_is_an_error(self, tmp_path: Path) -> None:
        write_zarr(str(tmp_path / "t.zarr"), make_X(), None, 10, shards=(40, 5), fill_value=np.nan)
        (tmp_path / "t.zarr" / "X" / "c" / "1" / "0").unlink()
        with pytest.raises(DataError, match="rows 40:80"):
            open_source(tmp_path / "t.zarr", need_targets=False).read(Span(50, 60))

    def test_damaged_metadata(self, path: Path) -> None:
        (path / "X" / "zarr.json").write_text("{")
        with pytest.raises(DataError, match=r"t.zarr"):
            open_source(path)

    def test_decoding_is_counted_in_full(self, path: Path) -> None:
        source = open_source(path, need_targets=False)
        assert source.read_bytes(Span(0, 1)) >= 40 * COLUMNS * 4
        assert not source.has_partial_reads()


class TestNpy:
    def test_targets_elsewhere(self, tmp_path: Path) -> None:
        np.save(tmp_path / "feats.npy", make_X())
        np.save(tmp_path / "labels.npy", make_y("int"))
        for y in ("labels", "labels.npy", str(tmp_path / "labels.npy")):
            source = open_source(tmp_path / "feats.npy", y=y)
            assert np.array_equal(open_source(**source.spec()).read_targets(Span(0, ROWS)), make_y("int"))
        with pytest.raises(DataError, match=r"no array 'label'.*'labels'.*`y`"):
            open_source(tmp_path / "feats.npy", y="label")
        with pytest.raises(DataError, match=r"no array 'X'.*`x`"):
            open_source(tmp_path)

    def test_damaged_files(self, tmp_path: Path) -> None:
        np.save(tmp_path / "X.npy", make_X())
        np.save(tmp_path / "y.npy", np.array(["a", {}], dtype=object))
        with pytest.raises(DataError, match="Python objects"):
            open_source(tmp_path)
        whole = (tmp_path / "X.npy").read_bytes()
        for damaged in (whole[:-9], whole[:20], b""):
            (tmp_path / "X.npy").write_bytes(damaged)
            with pytest.raises(DataError, match=r"X\.npy"):
                open_source(tmp_path, need_targets=False)

    def test_an_archive_under_another_name(self, tmp_path: Path) -> None:
        with open(tmp_path / "X.npy", "wb") as file:
            np.savez(file, X=make_X(), y=make_y("int"))
        with pytest.raises(DataError, match=r"X\.npy is an \.npz archive.*rename it to .*X\.npz"):
            open_source(tmp_path, need_targets=False)

    def test_a_file_that_changes_or_goes_while_it_is_read(self, tmp_path: Path) -> None:
        np.save(tmp_path / "X.npy", make_X())
        source = open_source(tmp_path, need_targets=False)
        np.save(tmp_path / "X.npy", make_X()[:20])
        with pytest.raises(StorageError, match="changed"):
            source.read(Span(0, 10))
        (tmp_path / "X.npy").unlink()
        with pytest.raises(StorageError, match="does not exist"):
            source.read(Span(0, 10))


class TestParquet:
    def table(self, path: Path, **columns: Any) -> Path:
        pq.write_table(pa.table(columns), path, row_group_size=2)
        return path

    def test_choice_of_columns(self, tmp_path: Path) -> None:
        path = self.table(tmp_path / "t.parquet", b=[1, 2, 3], a=[4, 5, 6], y=[7, 8, 9], __index_level_0__=[0, 1, 2])
        assert open_source(path).feature_names == ("b", "a")
        assert open_source(path, target="a").feature_names == ("b", "y")
        assert open_source(path, exclude="b").read(Span(1, 3)).X.tolist() == [[5], [6]]
        assert open_source(path, target="b", features=["y", "a"]).read(Span(0, 2)).X.tolist() == [[7, 4], [8, 5]]
        assert open_source(path, target=["b", "y"]).read_targets(Span(2, 3)).tolist() == [[3, 9]]
        assert open_source(path, need_targets=False).feature_names == ("b", "a")
        assert open_source(path, target="gone", exclude="gone too", need_targets=False).feature_names == ("b", "a", "y")

    def test_names_that_are_wrong(self, tmp_path: Path) -> None:
        path = self.table(tmp_path / "t.parquet", age=[1, 2], price=[4, 5])
        with pytest.raises(InputError, match=r"`target`.*'age', 'price'"):
            open_source(path)
        with pytest.raises(DataError, match=r"no column 'Price'.*did you mean 'price'"):
            open_source(path, target="Price")
        with pytest.raises(DataError, match=r"no column 'ages'.*did you mean 'age'"):
            open_source(path, target="price", features=["ages"])
        with pytest.raises(DataError, match=r"no column 'agee'.*exclude"):
            open_source(path, target="price", exclude=["agee"])
        with pytest.raises(InputError, match="also the target"):
            open_source(path, target="price", features=["age", "price"])
        with pytest.raises(InputError, match="twice"):
            open_source(path, target="price", features=["age", "age"])
        with pytest.raises(DataError, match=r"no column of .* is left"):
            open_source(path, target="price", exclude=["age"])

    def test_types_that_are_wrong(self, tmp_path: Path) -> None:
        stamps = pa.array([0, 1], pa.timestamp("s"))
        path = self.table(tmp_path / "t.parquet", a=[1, 2], city=["x", "y"], when=stamps, y=[0, 1])
        with pytest.raises(
            DataError, match=r"column 'city' of .* is of type string.*`categories=.*`exclude=\['city'\]`$"
        ):
            open_source(path)
        with pytest.raises(DataError, match=r"target column 'when'.*timestamp"):
            open_source(path, target="when", features=["a"])
        with pytest.raises(DataError, match="mix strings and numbers"):
            open_source(path, target=["city", "y"], features=["a"])

    def test_nulls_are_nan_and_make_integers_floats(self, tmp_path: Path) -> None:
        columns = {
            "i": pa.array([1, None, 3], pa.int64()),
            "b": pa.array([True, False, None]),
            "s": pa.array([1, None, 3], pa.int16()),
            "f": pa.array([None, 1.5, 2.5], pa.float32()),
            "d": pa.array([1, None, 3], pa.decimal128(9, 2)),
            "c": pa.array([1, None, 3], pa.int8()).dictionary_encode(),
        }
        path = self.table(tmp_path / "t.parquet", **columns, y=pa.array([1, None, 2], pa.int32()))
        source = open_source(path)
        expected = [[1, 1, 1, np.nan, 1, 1], [np.nan, 0, np.nan, 1.5, np.nan, np.nan], [3, np.nan, 3, 2.5, 3, 3]]
        assert np.array_equal(source.read(Span(0, 3)).X, np.array(expected), equal_nan=True)
        assert np.array_equal(source.read_targets(Span(0, 3)), [1, np.nan, 2], equal_nan=True)
        assert open_source(path, features=["s", "b"]).x_dtype == np.float32
        assert open_source(path, features=["i"]).x_dtype == np.float64

    def test_types_are_the_narrowest_that_hold_all(self, tmp_path: Path) -> None:
        path = self.table(
            tmp_path / "t.parquet",
            b=[True, False],
            i=pa.array([1, 2], pa.int16()),
            f=pa.array([1, 2], pa.float32()),
            y=[0, 1],
        )
        assert open_source(path, features=["b"]).x_dtype == np.bool_
        assert open_source(path, features=["b", "i"]).x_dtype == np.int16
        assert open_source(path).x_dtype == np.float32

    def test_categories_and_missing_labels(self, tmp_path: Path) -> None:
        labels = ["red", "green", None, "red"]
        for name, column in (("plain", pa.array(labels)), ("coded", pa.array(labels).dictionary_encode())):
            path = self.table(tmp_path / f"{name}.parquet", a=[1, 2, 3, 4], y=column)
            source = open_source(path)
            assert source.y_dtype == np.dtype("U")
            assert source.read_targets(Span(0, 4)).tolist() == labels
            assert source.read_targets(Span(0, 2)).dtype.kind == "U"

    def test_files_must_agree(self, tmp_path: Path) -> None:
        self.table(tmp_path / "1.parquet", a=[1, 2], b=[1, 2], y=[0, 1])
        self.table(tmp_path / "2.parquet", a=[1, 2], y=[0, 1])
        with pytest.raises(DataError, match=r"no column 'b' in .*2.parquet, but .*1.parquet has it"):
            open_source(tmp_path)
        self.table(tmp_path / "2.parquet", a=[1.0, 2.0], b=[1, 2], y=[0, 1])
        with pytest.raises(DataError, match=r"'a' is of type int64 in .*1.parquet but double in .*2.parquet"):
            open_source(tmp_path)
        self.table(tmp_path / "2.parquet", y=[0, 1], b=[5, 6], a=[3, 4])  # another order is no difference
        assert open_source(tmp_path).read(Span(1, 3)).X.tolist() == [[2, 2], [3, 5]]

    def test_shards_may_differ_in_having_nulls(self, tmp_path: Path) -> None:
        paths = [self.table(tmp_path / f"{i}.parquet", a=[1, value], y=[0, 1]) for i, value in enumerate([2, None])]
        source = open_source(paths)
        assert source.x_dtype == np.float64
        for span in (Span(0, 2), Span(0, 4)):
            assert source.read(span).X.dtype == np.float64
        assert source.read(Span(1, 3)).X.tolist() == [[2], [1]]

    def test_no_rows(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no rows"):
            open_source(self.table(tmp_path / "t.parquet", a=pa.array([], pa.int8()), y=pa.array([], pa.int8())))

    def test_damage(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        write_parquet(path, make_X("f8"), make_y("int"), 40)
        whole = path.read_bytes()
        path.write_bytes(whole[:-20])
        with pytest.raises(DataError, match=r"t.parquet is truncated or corrupt"):
            open_source(path, target="y0")
        start = pq.ParquetFile(pa.BufferReader(whole)).metadata.row_group(2).column(0).dictionary_page_offset
        path.write_bytes(whole[:start] + b"\xff" * 200 + whole[start + 200 :])
        source = open_source(path, target="y0")
        assert np.array_equal(source.read(Span(0, 80)).X, make_X("f8")[:80])
        with pytest.raises(DataError, match=r"row group 2 \(rows 80:97\) of .*t.parquet is truncated or corrupt"):
            source.read(Span(0, ROWS))

    def test_nested_names_and_dots(self, tmp_path: Path) -> None:
        path = self.table(tmp_path / "t.parquet", **{"a.b": [1, 2], "a": [3, 4], "y": [0, 1]})
        assert open_source(path).read(Span(0, 2)).X.tolist() == [[1, 3], [2, 4]]
