"""The real data sets, each with the split that everybody gets; small look-alikes where sizes are toys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchlib.places import DATA
from benchlib.tables import Rows, bends, into_classes, once, write_table

Split = tuple[Rows, Rows]
TOY_ROWS, TOY_TEST = 600, 300


@dataclass(frozen=True)
class DataSet:
    """A task: its file, how to load it, and the sizes of the machines that are fitted to it."""

    name: str
    title: str
    file: str
    load: Callable[[], Split]
    inputs: int
    classes: int  # 0 for regression
    D: int
    grids: int

    @property
    def task(self) -> str:
        return "classification" if self.classes else "regression"

    @property
    def there(self) -> bool:
        return (DATA / self.file).exists()

    def tables(self, work: Path, quick: bool) -> tuple[Path, Path]:
        """The training and the test table, written if they are not there."""
        folder = work / "tables" / (f"toy-{self.name}" if quick else self.name)
        split = None
        for number, part in enumerate(("train.zarr", "test.zarr")):
            if not (folder / part).exists():
                split = split or (self.toy() if quick else self.load())
                once(folder / part, lambda path, rows=split[number]: write_table(path, *rows))
        return folder / "train.zarr", folder / "test.zarr"

    def toy(self) -> Split:
        """Rows with as many columns (50 at most) and classes, for seeing that everything runs."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((TOY_ROWS + TOY_TEST, min(self.inputs, 50)), dtype=np.float32)
        y = bends(X).astype(np.float64)
        y = into_classes(y, self.classes) if self.classes else 3 + y
        return (X[:TOY_ROWS], y[:TOY_ROWS]), (X[TOY_ROWS:], y[TOY_ROWS:])


def shuffled(X: np.ndarray, y: np.ndarray, train: int) -> Split:
    """The first rows of a fixed shuffle train, the others test."""
    order = np.random.default_rng(0).permutation(len(X))
    first, second = order[:train], order[train:]
    X = np.ascontiguousarray(X, np.float32)
    return (X[first], y[first]), (X[second], y[second])


def _parquet(file: str, target: str) -> Rows:
    import pyarrow.parquet as parquet

    table = parquet.read_table(DATA / file)
    names = [name for name in table.column_names if name != target]
    return np.stack([table[name].to_numpy() for name in names], axis=1).astype(np.float32), table[target].to_numpy()


def covtype_two() -> Split:
    X, y = _parquet("covtype.parquet", "Cover_Type")
    return shuffled(X, (y == 2).astype(np.int64), 522_000)


def covtype_seven() -> Split:
    X, y = _parquet("covtype.parquet", "Cover_Type")
    return shuffled(X, y.astype(np.int64) - 1, 522_000)


def adult() -> Split:
    data = np.load(DATA / "a9a.npz")
    return tuple((data[x].astype(np.float32), (data[y] > 0).astype(np.int64)) for x, y in (("X", "y"), ("Xt", "yt")))


def mnist() -> Split:
    data = np.load(DATA / "mnist.npz")
    return tuple(
        (data[x].reshape(len(data[x]), -1).astype(np.float32) / 255, data[y].astype(np.int64))
        for x, y in (("X", "y"), ("Xt", "yt"))
    )


def _npz(file: str, train: int) -> Split:
    data = np.load(DATA / file)
    return shuffled(data["X"], data["y"].astype(np.float64), train)


def casp() -> Split:
    X, y = _parquet("casp.parquet", "RMSD")
    return shuffled(X, y.astype(np.float64), 41_157)


def kddcup() -> Split:
    """Text columns become 0/1 columns, one for each word of the training file; the test file is tested on."""
    import pyarrow.parquet as parquet

    train, test = (parquet.read_table(DATA / f"kddcup99_{part}.parquet") for part in ("train10", "test"))
    columns = [name for name in train.column_names if name != "label"]
    words = {name: np.unique(train[name].to_numpy()) for name in columns if not _is_number(train, name)}
    parts = tuple(_kdd_part(table, columns, words) for table in (train, test))
    order = np.random.default_rng(0).permutation(len(parts[0][1]))
    return (parts[0][0][order], parts[0][1][order]), parts[1]


def _is_number(table, name: str) -> bool:
    return np.issubdtype(np.asarray(table[name].to_numpy()[:1]).dtype, np.number)


def _kdd_part(table, columns: list[str], words: dict[str, np.ndarray]) -> Rows:
    found = []
    for name in columns:
        values = table[name].to_numpy()
        found += [values == word for word in words[name]] if name in words else [values]
    X = np.stack([np.asarray(column, np.float32) for column in found], axis=1)
    labels = np.char.rstrip(table["label"].to_numpy().astype(str), ".")  # some copies end every label with a dot
    return X, (labels != "normal").astype(np.int64)


SETS = {
    each.name: each
    for each in (
        DataSet("covtype2", "Forest Cover, type 2 against the rest", "covtype.parquet", covtype_two, 54, 2, 5000, 50),
        DataSet("covtype7", "Forest Cover, 7 types", "covtype.parquet", covtype_seven, 54, 7, 2000, 50),
        DataSet("kddcup99", "KDD Cup 99 (the 10 % file; tested on its labelled test file)", "kddcup99_train10.parquet",
                kddcup, 118, 2, 1000, 10),
        DataSet("adult", "Adult (a9a)", "a9a.npz", adult, 123, 2, 2000, 30),
        DataSet("cpu", "CPU (comp-activ)", "comp_activ.npz", lambda: _npz("comp_activ.npz", 6500), 21, 0, 1000, 350),
        DataSet("casp", "Protein structure (casp)", "casp.parquet", casp, 9, 0, 4000, 200),
        DataSet("mnist", "MNIST", "mnist.npz", mnist, 784, 10, 5000, 100),
        DataSet("census", "Census (a stand-in of 36 columns, not the paper's 119)", "census_house_union.npz",
                lambda: _npz("census_house_union.npz", 18_000), 36, 0, 500, 30),
    )
}  # fmt: skip
