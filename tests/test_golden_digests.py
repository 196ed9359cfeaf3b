"""Golden digests: what training gave on the day they were recorded, it gives today, bit for bit.

Golden digests change only on purpose, in a commit that says why:

    python tests/test_golden_digests.py --record

Small tables, one recipe of every kind, trained through the public interface alone. What is compared, from the most to
the least portable (``golden/digests.json`` has a part for each):

- ``tables``: digests of the data. If these differ, it is numpy's random numbers that changed, and nothing of ours.
- ``cases``: the digest of the sums, with ``==``; the settings that were used; and predictions of 64 rows, to a
  ``tolerance``, because LAPACK rounds otherwise on another CPU. The digests are the same on every CPU: they were with
  what OpenBLAS, numpy, glibc and numba take with SSE4.2, AVX2 and AVX-512. Three kinds of sums are not, and have no
  digest here: those of float features, of learned frequencies and of a learned metric, as BLAS has its part in them.
- ``machines``: a digest of the sums and of all bits of the predictions, for every case, on the machines that are listed
  there. On any other machine this part is not compared. To list one more, at a commit that is known to be good:

    python tests/test_golden_digests.py --add

Tables are made by adding and multiplying alone: the sines and logarithms of numpy differ between CPUs. Lattices are not
among the maps: two generators can be equally good but for the last bit of an eigenvalue, and CPUs take different ones.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy
import threadpoolctl
import zarr
from commands import FAST, done
from tables import write_zarr

import streamrf

GOLDEN = Path(__file__).parent / "golden" / "digests.json"
ROWS, NEW_ROWS, CHUNK = 2000, 64, 500
MEMORY = 2**31  # the size of samples that precondition depends on it
DIGITS = 7  # of recorded predictions
CLOSE, LOOSE = 1e-4, 1e-2  # of the largest prediction


# -- tables


def inputs(rows: int, seed: int) -> np.ndarray:
    """Columns of several kinds: plain, correlated, off centre, with heavy tails, and of zeros and ones."""
    x = np.random.default_rng(seed).integers(-1024, 1025, (rows, 5)) / 1024
    square = x[:, 3] * x[:, 3]
    columns = [x[:, 0], 2 * x[:, 1] + x[:, 0], 3 + x[:, 2] / 2, 64 * square * square * x[:, 3], 1.0 * (x[:, 4] > 0.25)]
    return np.stack(columns, axis=1).astype(np.float32)


def smooth(X: np.ndarray) -> np.ndarray:
    """A polynomial and noise."""
    x, noise = X.astype(np.float64), np.random.default_rng(1).integers(-512, 513, len(X)) / 1024
    return 2 * x[:, 0] * (1 - x[:, 0] * x[:, 0]) + x[:, 1] * (x[:, 2] - 3) + x[:, 4] / 2 + noise


def jumping(X: np.ndarray) -> np.ndarray:
    """Thresholds, which random binning learns better than cosines do."""
    return 2.0 * (X[:, 0] > 0.3) + 2.0 * (X[:, 1] > -0.5) * (X[:, 2] > 3.1) + smooth(X) / 4


def two_outputs(X: np.ndarray) -> np.ndarray:
    return np.stack([smooth(X), 100.0 * X[:, 0].astype(np.float64) * X[:, 2]], axis=1)


TARGETS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "numbers": smooth,
    "two outputs": two_outputs,
    "two classes": lambda X: (smooth(X) > 0.5).astype(np.int64),
    "many classes": lambda X: np.searchsorted([-0.5, 0, 0.5, 1], smooth(X)),
    "jumps": jumping,
    "gaps": smooth,
}


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    X = inputs(ROWS, seed=0)
    y = TARGETS[name](X)
    if name == "gaps":
        X[::97, 1] = np.nan
    return X, y


def digest_of_table(name: str) -> str:
    X, y = table(name)
    return hashlib.sha256(X.tobytes() + y.tobytes()).hexdigest()


def stored(folder: Path, name: str, chunk: int) -> str:
    """The table on disk, with weights of rows beside it."""
    path = folder / f"{name} {chunk}.zarr"
    if not path.exists():
        write_zarr(path, *table(name), chunk)
        weights = np.random.default_rng(2).integers(0, 4, ROWS).astype(np.float64)
        zarr.open_group(str(path), mode="a").create_array("weights", data=weights, chunks=(chunk,))
    return str(path)


def table_of_columns(rows: int, seed: int) -> pa.Table:
    """Text, dates and gaps."""
    rng = np.random.default_rng(seed)
    area, city, days = rng.integers(20, 120, rows), rng.integers(0, 3, rows), rng.integers(0, 20_000, rows)
    return pa.table(
        {
            "area": pa.array(area.astype(np.float64), mask=rng.integers(0, 10, rows) == 0),
            "city": np.array(["Rome", "Oslo", "Bern"])[city].tolist(),
            "built": pa.array(days.astype(np.int32)).cast(pa.date32()),
            "rent": area / 16 + 3.0 * (city == 1) + days / 4096 + rng.integers(-64, 65, rows) / 256,
        }
    )


# -- cases


@dataclass(frozen=True)
class Case:
    """A recipe, and the table that it is trained on."""

    table: str
    recipe: streamrf.Recipe
    everywhere: bool = True  # whether every CPU makes the same sums
    tolerance: float = CLOSE
    options: dict[str, Any] = field(default_factory=dict)  # of open_source


def fixed(**settings: Any) -> streamrf.Recipe:
    """Without a pilot; the features do not fill the vectors of any CPU."""
    plain = {"D": 50, "map": "mc", "kernel": "gaussian", "length_scale": 3.0, "scaling": "standard", "bits": "8"}
    return streamrf.Recipe(**{"pilot": "none", **plain, **settings})


WEIGHED = {"sample_weight": "weights"}
BINS = {"map": "binning", "grids": 20, "table_bits": 8}
FEW = {"learning_iterations": 6, "learning_steps": 10, "ridge": 1e-4}
FEWER = {**FEW, "learning_iterations": 2}

# fmt: off
CASES = {
    # maps, kernels, scalings, precisions and tasks; solved by Cholesky
    "mc": Case("numbers", fixed()),
    "orthogonal": Case("numbers", fixed(map="orthogonal", kernel="matern52", scaling="minmax", bits="7", ridge=1e-3)),
    "sobol": Case("two outputs", fixed(map="sobol", scaling="quantile", bits="12")),
    "halton, folds": Case("many classes", fixed(map="halton", kernel="laplacian", cv=4)),
    "moment-matched": Case("two classes", fixed(map="moment-matched", kernel="cauchy", scaling="log")),
    "fastfood": Case("two classes", fixed(map="fastfood", kernel="matern32", scaling="pca", bits="12")),
    "sorf, gaps": Case("gaps", fixed(map="sorf", scaling="none", bits="7", nan="drop")),
    "weighted, pairs": Case("numbers", fixed(map="weighted", kernel="matern12", form="pairs")),
    "aligned": Case("many classes", fixed(map="aligned", seed=1)),
    "landmarks": Case("numbers", fixed(map="landmarks", kernel="matern12", bits="20")),
    "float32": Case("numbers", fixed(bits="float32", ridge=1e-4), everywhere=False),
    "float64, class weights": Case(
        "many classes", fixed(bits="float64", class_weight="balanced", solver="cholesky", ridge=1e-4), everywhere=False,
    ),
    # what is learned before the pass
    "supervised": Case("numbers", fixed(map="supervised", **FEW), everywhere=False, tolerance=LOOSE),
    "ekal-sample": Case("numbers", fixed(map="ekal-sample", **FEWER), everywhere=False, tolerance=LOOSE),
    "metric": Case("numbers", fixed(metric="full", **FEW), everywhere=False, tolerance=LOOSE),
    # other solvers and losses
    "cg, class weights": Case("many classes", fixed(solver="cg", class_weight="balanced", seed=1), tolerance=LOOSE),
    "cg, nystrom, weights": Case("two outputs", fixed(solver="cg", preconditioner="nystrom"), options=WEIGHED),
    "newton, logistic": Case("many classes", fixed(loss="logistic", bits="12"), tolerance=LOOSE),
    "newton, squared hinge": Case("two classes", fixed(loss="squared-hinge", class_weight="balanced", ridge=1e-4)),
    "newton, huber, weights": Case("numbers", fixed(loss="huber"), options=WEIGHED),
    "newton, quantile": Case("numbers", fixed(loss="quantile", quantile=0.8, bits="7", ridge=1e-4)),
    "sgd, hinge": Case("many classes", fixed(loss="hinge", shards=2, epochs=3, ridge=1e-3), tolerance=LOOSE),
    "sgd, logistic": Case("two classes", fixed(loss="logistic", solver="sgd", epochs=2, ridge=1e-3)),
    # random binning, and what the pilot chooses
    "binning": Case("numbers", streamrf.Recipe(pilot="none", **BINS)),
    "trees": Case("numbers", streamrf.Recipe(map="trees")),
    "trees, classes, weights": Case("many classes", streamrf.Recipe(map="trees", seed=1), options=WEIGHED),
    "blend": Case("many classes", streamrf.Recipe(map="blend", D=50, pilot="none", grids=20, table_bits=8)),
    "pilot of binning": Case("many classes", streamrf.Recipe(**BINS)),
    "pilot, any": Case("jumps", streamrf.Recipe(map="any", grids=50), everywhere=False, tolerance=LOOSE),
    "pilot, auto": Case("two classes", streamrf.Recipe(D=64)),
}
# fmt: on
COMMAND = "command line"
ON_A_CLUSTER = (
    "mc",
    "sobol",
    "halton, folds",
    "cg, class weights",
    "newton, logistic",
    "sgd, hinge",
    "binning",
    "trees",
    "blend",
)
IN_ANY_ORDER = ("sobol", "newton, logistic")


def trained(name: str, folder: Path, chunk: int = CHUNK, **settings: Any) -> streamrf.Model:
    case = CASES[name]
    how = streamrf.Settings(**{"threads": 1, "memory": MEMORY, **settings})
    return streamrf.train(stored(folder, case.table, chunk), case.recipe, how, **case.options).model


def trained_by_command(folder: Path) -> streamrf.Model:
    pq.write_table(table_of_columns(ROWS, seed=3), folder / "rents.parquet", row_group_size=CHUNK)
    done("train", folder / "rents.parquet", "--target", "rent", "--missing", "median", *FAST, "--quiet",
         "--out", folder / "rents.model")  # fmt: skip
    return streamrf.Model.load(folder / "rents.model")


@contextmanager
def two_workers() -> Iterator[Any]:
    """An engine of two processes. The one place that needs more than the public interface."""
    from cluster_tools import local_cluster

    from streamrf.engines.cluster import ClusterEngine

    with local_cluster(2) as (_, client):
        yield ClusterEngine(client)


# -- what is found of a model


def digest_of(model: streamrf.Model) -> str:
    """Of the sums: the one place that knows where training leaves it."""
    return model.metadata["statistics_digest"]


def settings_of(model: streamrf.Model) -> dict[str, Any]:
    names = ("scaling", "kernel", "length_scale", "map", "form", "bits", "solver", "grids", "table_bits")
    return {name: getattr(model.recipe, name) for name in names} | {"lambda": float(model.weights.ridge)}


def predictions_of(model: streamrf.Model, folder: Path) -> np.ndarray:
    """Of rows that training has not seen; for classes their probabilities."""
    if model.columns is None:
        return streamrf.predict(model, inputs(NEW_ROWS, seed=4), proba=model.is_classifier, threads=1)
    pq.write_table(table_of_columns(NEW_ROWS, seed=4), folder / "new.parquet")
    return streamrf.predict(model, folder / "new.parquet", threads=1)


@dataclass
class Found:
    """What is recorded of a case, and compared."""

    digest: str
    settings: dict[str, Any]
    predictions: np.ndarray

    @classmethod
    def of(cls, model: streamrf.Model, folder: Path) -> Found:
        return cls(digest_of(model), settings_of(model), predictions_of(model, folder))

    @property
    def bits(self) -> str:
        """A digest of the sums and of every bit of the predictions."""
        return hashlib.sha256(self.digest.encode() + self.predictions.tobytes()).hexdigest()

    def to_json(self, everywhere: bool) -> dict[str, Any]:
        rounded = [float(f"{value:.{DIGITS}g}") for value in self.predictions.ravel()]
        digest = {"digest": self.digest} if everywhere else {}
        return {**digest, "settings": self.settings, "predictions": rounded}


@cache
def machine() -> str:
    """What last bits depend on: the CPU, the libraries, and which of their code they take there."""
    cpu = {"model name": platform.processor(), "cpu family": "", "model": ""}
    if (file := Path("/proc/cpuinfo")).exists():
        lines = (line.partition(":") for line in file.read_text().split("\n\n")[0].splitlines())
        cpu |= {name.strip(): value.strip() for name, _, value in lines if name.strip() in cpu}
    blas = {info["architecture"] for info in threadpoolctl.threadpool_info() if info["internal_api"] == "openblas"}
    vectors = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    libraries = f"numpy {np.__version__}, scipy {scipy.__version__}, {' '.join(platform.libc_ver())}"
    return f"{' '.join(cpu.values())}, {' '.join([platform.machine(), *sorted(blas), *vectors])}, {libraries}"


# -- comparing


@cache
def golden() -> dict[str, Any]:
    return json.loads(GOLDEN.read_text())


def nearly(setting: Any) -> Any:
    return pytest.approx(setting, rel=1e-6) if isinstance(setting, float) else setting


def check(name: str, found: Found) -> None:
    """Compare with what was recorded."""
    wanted, tolerance = golden()["cases"][name], CASES[name].tolerance if name in CASES else CLOSE
    assert found.digest == wanted.get("digest", found.digest)
    assert found.settings == {name: nearly(value) for name, value in wanted["settings"].items()}
    there = np.reshape(wanted["predictions"], found.predictions.shape)
    size = np.abs(there).max(axis=0)  # outputs may be of different sizes
    assert (np.abs(found.predictions - there) <= tolerance * size).all()
    bits = golden()["machines"].get(machine(), {})
    assert found.bits == bits.get(name, found.bits)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    with two_workers() as engine:
        yield engine


@pytest.mark.parametrize("name", TARGETS)
def test_the_tables_are_what_they_were(name: str) -> None:
    assert digest_of_table(name) == golden()["tables"][name]


@pytest.mark.parametrize("name", CASES)
def test_training_gives_what_it_gave(name: str, folder: Path) -> None:
    check(name, Found.of(trained(name, folder), folder))


def test_the_command_line_gives_what_it_gave(folder: Path) -> None:
    """With text, dates and gaps, and by way of a file."""
    check(COMMAND, Found.of(trained_by_command(folder), folder))


@pytest.mark.parametrize("name", ON_A_CLUSTER)
def test_two_workers_give_the_same(name: str, folder: Path, engine: Any) -> None:
    check(name, Found.of(trained(name, folder, engine=engine), folder))


@pytest.mark.parametrize("name", IN_ANY_ORDER)
def test_threads_chunks_and_order_do_not_matter(name: str, folder: Path) -> None:
    order = np.random.default_rng(5).permutation
    check(name, Found.of(trained(name, folder, chunk=77, threads=2, order=order), folder))


def test_every_case_is_recorded() -> None:
    assert list(golden()["cases"]) == [*CASES, COMMAND]
    assert [name for name, case in golden()["cases"].items() if "digest" not in case] == [
        name for name, case in CASES.items() if not case.everywhere
    ]


def test_last_bits_were_recorded_on_this_machine() -> None:
    if machine() not in golden()["machines"]:
        pytest.skip(f"no bits of {machine()}: at a commit that is known to be good, {sys.executable} {__file__} --add")
    assert list(golden()["machines"][machine()]) == [*CASES, COMMAND]


# -- recording


def find_all() -> dict[str, Found]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = {name: Found.of(trained(name, folder), folder) for name in CASES}
        return {**found, COMMAND: Found.of(trained_by_command(folder), folder)}


def record(path: Path) -> None:
    """All of it anew; machines other than this one are forgotten."""
    found = find_all()
    write(path, {
        "tables": {name: digest_of_table(name) for name in TARGETS},
        "cases": {name: each.to_json(name not in CASES or CASES[name].everywhere) for name, each in found.items()},
        "machines": {machine(): {name: each.bits for name, each in found.items()}},
    })  # fmt: skip


def add(path: Path) -> None:
    """The bits of this machine, where everything else is as it was recorded."""
    found = find_all()
    for name, each in found.items():
        check(name, each)
    bits = {name: each.bits for name, each in found.items()}
    write(path, {**golden(), "machines": {**golden()["machines"], machine(): bits}})


def write(path: Path, document: dict[str, dict[str, Any]]) -> None:
    """One line for each entry, so that a change can be read."""
    parts = []
    for part, entries in document.items():
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
        parts.append(f" {json.dumps(part)}: {{\n{lines}\n }}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    how, place = (*sys.argv[1:], GOLDEN)[:2]
    {"--record": record, "--add": add}[how](Path(place))
