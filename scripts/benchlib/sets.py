"""The real data sets, each with the split that everybody gets; small look-alikes where sizes are toys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchlib.places import DATA
from benchlib.tables import Rows, bends, into_classes, once, write_table

Split = tuple[Rows, Rows]
TOY_ROWS, TOY_TEST, TOY_INPUTS = 1500, 1000, 5


@dataclass(frozen=True)
class DataSet:
    """A task: its file, how to load it, and the sizes of the machines that are fitted to it."""

    name: str
    title: str
    file: str
    load: Callable[[int], Split]  # of the seed of the shuffle
    classes: int  # 0 for regression
    D: int
    grids: int

    @property
    def there(self) -> bool:
        return (DATA / self.file).exists()

    def tables(self, work: Path, quick: bool, *, seed: int = 0, rows: int | None = None) -> tuple[Path, Path]:
        """The training table (or its first rows) and the test table, written if they are not there."""
        kept = "" if rows is None else f"-{rows}-rows"
        folder = work / "tables" / f"{'toy-' * quick}{self.name}{f'-shuffle-{seed}' * (seed > 0)}{kept}"
        parts = (folder / "train.zarr", folder / "test.zarr")
        if not all(path.exists() for path in parts):
            (X, y), test = self.toy() if quick else self.load(seed)
            for path, values in zip(parts, ((X[:rows], y[:rows]), test), strict=True):
                once(path, lambda part, values=values: write_table(part, *values))
        return parts

    def toy(self) -> Split:
        """A few rows of as many classes, for seeing that everything runs."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((TOY_ROWS + TOY_TEST, TOY_INPUTS), dtype=np.float32)
        y = bends(X).astype(np.float64)
        y = into_classes(y, self.classes) if self.classes else 3 + y
        return (X[:TOY_ROWS], y[:TOY_ROWS]), (X[TOY_ROWS:], y[TOY_ROWS:])


def shuffled(X: np.ndarray, y: np.ndarray, train: int, seed: int) -> Split:
    """The first rows of a shuffle train, the others test."""
    order = np.random.default_rng(seed).permutation(len(X))
    first, second = order[:train], order[train:]
    X = np.ascontiguousarray(X, np.float32)
    return (X[first], y[first]), (X[second], y[second])


def columns(file: str) -> dict[str, np.ndarray]:
    import pyarrow.parquet as parquet

    table = parquet.read_table(DATA / file)
    return {name: table[name].to_numpy() for name in table.column_names}


def parquet_rows(file: str, target: str) -> Rows:
    found = columns(file)
    y = found.pop(target)
    return np.stack(list(found.values()), axis=1).astype(np.float32), y


def npz_rows(file: str) -> Rows:
    data = np.load(DATA / file)
    return data["X"], data["y"].astype(np.float64)


def npz_shuffled(file: str, train: int, seed: int) -> Split:
    return shuffled(*npz_rows(file), train, seed)


def npz_split(file: str) -> Split:
    """The split that came with the data."""
    data = np.load(DATA / file)
    return tuple((data[x].reshape(len(data[x]), -1).astype(np.float32), data[y]) for x, y in (("X", "y"), ("Xt", "yt")))


def covtype(classes: int, seed: int) -> Split:
    X, y = parquet_rows("covtype.parquet", "Cover_Type")
    return shuffled(X, (y == 2).astype(np.int64) if classes == 2 else y.astype(np.int64) - 1, 522_000, seed)


def casp(seed: int) -> Split:
    X, y = parquet_rows("casp.parquet", "RMSD")
    return shuffled(X, y.astype(np.float64), 41_157, seed)


def adult(seed: int) -> Split:
    return tuple((X, (y > 0).astype(np.int64)) for X, y in npz_split("a9a.npz"))


def mnist(seed: int) -> Split:
    return tuple((X / 255, y.astype(np.int64)) for X, y in npz_split("mnist.npz"))


def kddcup(seed: int) -> Split:
    """Text columns become 0/1 columns, one for each word of the training file; the test file is tested on."""
    train, test = (columns(f"kddcup99_{part}.parquet") for part in ("train10", "test"))
    words = {name: np.unique(values) for name, values in train.items() if name != "label" and not _is_number(values)}
    parts = tuple(_kdd_part(table, list(train), words) for table in (train, test))
    order = np.random.default_rng(seed).permutation(len(parts[0][1]))
    return (parts[0][0][order], parts[0][1][order]), parts[1]


def _is_number(values: np.ndarray) -> bool:
    return np.issubdtype(np.asarray(values[:1]).dtype, np.number)


def _kdd_part(table: dict[str, np.ndarray], names: list[str], words: dict[str, np.ndarray]) -> Rows:
    found = []
    for name in names:
        if name != "label":
            found += [table[name] == word for word in words[name]] if name in words else [table[name]]
    X = np.stack([np.asarray(column, np.float32) for column in found], axis=1)
    labels = np.char.rstrip(table["label"].astype(str), ".")  # some copies end every label with a dot
    return X, (labels != "normal").astype(np.int64)


SETS = {
    each.name: each
    for each in (
        DataSet("covtype2", "Forest Cover, type 2 against the rest", "covtype.parquet", partial(covtype, 2), 2, 5000,
                50),
        DataSet("covtype7", "Forest Cover, 7 types", "covtype.parquet", partial(covtype, 7), 7, 2000, 50),
        DataSet("kddcup99", "KDD Cup 99 (the 10 % file; tested on its labelled test file)", "kddcup99_train10.parquet",
                kddcup, 2, 1000, 10),
        DataSet("adult", "Adult (a9a)", "a9a.npz", adult, 2, 2000, 30),
        DataSet("cpu", "CPU (comp-activ)", "comp_activ.npz", partial(npz_shuffled, "comp_activ.npz", 6500), 0, 1000,
                350),
        DataSet("casp", "Protein structure (casp)", "casp.parquet", casp, 0, 4000, 200),
        DataSet("mnist", "MNIST", "mnist.npz", mnist, 10, 5000, 100),
        DataSet("census", "Census (a stand-in of 36 columns, not the paper's 119)", "census_house_union.npz",
                partial(npz_shuffled, "census_house_union.npz", 18_000), 0, 500, 30),
    )
}  # fmt: skip
