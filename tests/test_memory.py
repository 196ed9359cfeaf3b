"""Memory: measured <= projected <= budget, whatever the shape; more rows take no more; planning reads nothing."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from commands import PROJECT, streamrf
from tables import smooth

from streamrf.data.readers.memory import ArraySource
from streamrf.data.readers.zarr import ZarrSource
from streamrf.data.screening import _read, draw_sample, random_runs
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.solvers import rates
from streamrf.solvers.rates import Rates
from streamrf.support import memory
from streamrf.training import plan as planning
from streamrf.training.plan import estimate_run, plan_run

FIXED = ("--pilot", "none", "--length-scale", "3", "--lambda", "1e-6", "--threads", "2", "--no-checkpoint", "--json")

# Runs a command, then says what the process held at its worst.
MEASURED = """
import json, sys
from streamrf.support import memory
from streamrf.cli import main
main(sys.argv[1:])
print(json.dumps({"peak": memory.peak()}))
"""


def measured(*args, first=""):
    """The objects that a command and the account of its process end with; ``first`` is run before the command."""
    command = [sys.executable, "-c", first + MEASURED, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    said, account = done.stdout.splitlines()
    return json.loads(said), json.loads(account)["peak"]


def big_zarr(path, rows, columns, chunk, classes=0):
    """A table written a chunk at a time."""
    group = zarr.open_group(str(path), mode="w")
    X = group.create_array("X", shape=(rows, columns), chunks=(chunk, columns), dtype="float32")
    y = group.create_array("y", shape=(rows,), chunks=(chunk,), dtype="int64" if classes else "float32")
    for start in range(0, rows, chunk):
        block = np.random.default_rng(start).standard_normal((min(chunk, rows - start), columns), dtype=np.float32)
        target = np.sin(block[:, 0]) + block[:, 1]
        X[start : start + chunk] = block
        y[start : start + chunk] = np.digitize(target, np.linspace(-1.5, 1.5, classes - 1)) if classes else target
    return path


def big_parquet(path, rows, columns):
    block = np.random.default_rng(0).standard_normal((rows, columns))
    pq.write_table(
        pa.table({**{f"c{j}": block[:, j] for j in range(columns)}, "y": block[:, 0]}), path, row_group_size=rows
    )
    return path


def coded_parquet(path, rows, levels):
    """Two categories, which become as many columns each as they have levels."""
    rng = np.random.default_rng(0)
    names = np.array([f"level {i}" for i in range(levels)])
    codes = rng.integers(0, levels, (2, rows))
    table = {"a": names[codes[0]], "b": names[codes[1]], "y": np.sin(codes[0] / 100.0)}
    pq.write_table(pa.table(table), path, row_group_size=rows)
    return path


SHAPES = {
    "narrow rows, few features": (lambda p: big_zarr(p / "t.zarr", 100_000, 8, 10_000), "--D", "50", "--bits", "8"),
    "narrow rows, many features": (lambda p: big_zarr(p / "t.zarr", 6_000, 8, 2_000), "--D", "1200", "--bits", "12"),
    "wide rows": (lambda p: big_zarr(p / "t.zarr", 6_000, 1200, 1_000), "--D", "60", "--bits", "float64"),
    "one large chunk": (lambda p: big_zarr(p / "t.zarr", 400_000, 16, 400_000, 3), "--D", "50", "--bits", "8"),
    "many classes": (
        lambda p: big_zarr(p / "t.zarr", 20_000, 8, 10_000, 100), "--D", "50", "--bits", "8", "--task", "classification"
    ),
    "one large row group": (lambda p: big_parquet(p / "t.parquet", 200_000, 16), "--D", "50", "--bits", "float32"),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_measured_is_within_projected_is_within_budget(tmp_path, shape):
    make, *options = SHAPES[shape]
    said, peak = measured("train", make(tmp_path), *options, *FIXED, "--memory", "1GB", "--out", tmp_path / "m.model")
    report = said["memory"]
    assert report["peak"] <= peak <= report["projected"] <= report["budget"] == 10**9


BINNED = {
    "bins for most rows": ((200_000, 8, 20_000), "--grids", "60", "--table-bits", "17"),
    "bins of many classes": ((20_000, 8, 10_000, 80), "--grids", "50", "--task", "classification"),
}


@pytest.mark.parametrize("case", BINNED)
@pytest.mark.parametrize("budget", ["1100MB", "3GB"])
def test_random_binning_keeps_to_its_plan_and_takes_no_more_of_a_larger_budget(tmp_path, case, budget):
    """Narrow bins: nearly every row has some of its own. Tight budgets take outputs in smaller groups, or bin indices
    from a disk; large ones are no licence."""
    shape, *options = BINNED[case]
    said, peak = measured(
        "train", big_zarr(tmp_path / "t.zarr", *shape), "--map", "binning", "--length-scale", "0.3", "--pilot", "none",
        "--threads", "2", "--no-checkpoint", "--json", *options, "--memory", budget, "--out", tmp_path / "m.model",
    )  # fmt: skip
    report = said["memory"]
    assert peak <= report["projected"] <= report["budget"]
    assert peak < 700e6


def test_a_block_is_as_large_as_what_its_rows_become(tmp_path):
    """80,000 rows of two texts in one row group are a few megabytes, and 830 MB once each level is a column."""
    data, out = coded_parquet(tmp_path / "t.parquet", 80_000, 1_300), tmp_path / "m.model"
    options = ("--categories", "onehot", "--D", "50", "--bits", "8", *FIXED, "--memory", "1500MB", "--out", out)
    said, peak = measured("train", data, *options)
    assert peak <= said["memory"]["projected"] <= 1.5e9


def test_many_classes_are_planned_for_once_they_are_counted(tmp_path):
    data = big_zarr(tmp_path / "t.zarr", 20_000, 4, 20_000, 600)
    options = ("--D", "50", *FIXED[:-1], "--quiet", "--out", tmp_path / "m.model", "--task", "classification")
    budget = memory.reserved() + 200_000_000
    answer = streamrf("train", data, *options, "--memory", budget, "--holdout", "0.5")
    assert answer.code == 6
    assert "hold out fewer rows with --holdout" in answer.sentence


def test_a_budget_below_what_python_needs_says_so(tmp_path):
    answer = streamrf("train", big_zarr(tmp_path / "t.zarr", 500, 4, 500), "--D", "50", "--memory", "100MB", "--quiet")
    assert answer.code == 6
    assert "Python and its libraries alone take" in answer.sentence


def test_the_pilot_keeps_to_the_plan(tmp_path):
    said, peak = measured(
        "train", big_zarr(tmp_path / "t.zarr", 20_000, 30, 5_000), "--D", "60", "--kernel", "gaussian", "--json",
        "--no-checkpoint", "--out", tmp_path / "m.model", "--memory", "1GB",
    )  # fmt: skip
    assert peak <= said["memory"]["projected"] <= 10**9


@pytest.mark.parametrize("pilot", ["none", "auto"])
def test_a_sample_that_memory_does_not_hold_is_drawn_smaller(tmp_path, pilot):
    """The whole table is the usual sample, of which copies alone would take more than the budget leaves."""
    data = coded_parquet(tmp_path / "t.parquet", 24_000, 700)
    said, peak = measured(
        "train", data, "--categories", "onehot", "--D", "60", "--kernel", "gaussian", "--pilot", pilot, "--json",
        "--threads", "2", "--no-checkpoint", "--out", tmp_path / "m.model", "--memory", "800MB",
    )  # fmt: skip
    assert peak <= said["memory"]["projected"] <= 800e6
    assert max((each["rows"] for each in said.get("pilot", [])), default=0) < 18_000


def csv_of_two_million_ids(path):
    """Another id in every row, 5,000 zip codes, gaps: 66 MB, which would take several hundred as Python objects."""
    rows, rng = 2_000_000, np.random.default_rng(0)
    number, code, size = np.arange(rows), rng.integers(1, 5001, rows), rng.integers(0, 10_000, rows)
    with open(path, "w") as file:
        file.write("id,zip,size,price\n")
        for start in range(0, rows, 100_000):
            parts = (part[start : start + 100_000].tolist() for part in (number, code, size))
            lines = (
                f"customer-{i},{z:05d},{'' if s < 3000 else s / 100},{s + z % 7}\n"
                for i, z, s in zip(*parts, strict=True)
            )
            file.writelines(lines)
    return path


def test_a_csv_file_of_two_million_ids_is_converted_and_trained_on_within_its_budget(tmp_path):
    data = csv_of_two_million_ids(tmp_path / "t.csv")
    said, peak = measured(
        "train", data, "--target", "price", "--D", "40", *FIXED, "--out", tmp_path / "m.model", "--memory", "800MB"
    )
    assert said["rows"] == 2_000_000
    assert peak <= said["memory"]["projected"] <= 800e6
    names = [column.name for column in Model.load(tmp_path / "m.model").columns.columns]
    assert names == ["zip", "size"]


FEW_TREES = (
    "from streamrf.features.trees import boosting; boosting.LEAST_TREES = boosting.MOST_TREES = boosting.TRIED = 5"
)


def test_a_blend_keeps_to_the_plan(tmp_path):
    said, peak = measured(
        "train", big_zarr(tmp_path / "t.zarr", 20_000, 12, 5_000), "--map", "blend", "--D", "600", "--grids", "100",
        "--json", "--pilot", "none", "--no-checkpoint", "--out", tmp_path / "m.model", "--memory", "1GB",
        first=FEW_TREES,
    )  # fmt: skip
    assert said["map"] == "blend"
    assert peak <= said["memory"]["projected"] <= 10**9


GROWN = {
    "a hundred megabytes": ((220_000, 120, 20_000), "1600MB"),
    "a budget that holds a part of them": ((220_000, 120, 20_000), "700MB"),
    "many classes": ((60_000, 8, 20_000, 60), "1GB", "--task", "classification"),
}


@pytest.mark.parametrize("case", GROWN)
def test_trees_keep_to_the_plan(tmp_path, case):
    """All that they keep is there before the first tree, and the values of leaves are planned for at their most."""
    shape, budget, *options = GROWN[case]
    said, peak = measured(
        "train", big_zarr(tmp_path / "t.zarr", *shape), "--map", "trees", *options, "--threads", "2", "--json",
        "--no-checkpoint", "--out", tmp_path / "m.model", "--memory", budget, first=FEW_TREES,
    )  # fmt: skip
    assert peak <= said["memory"]["projected"] <= said["memory"]["budget"]
    rows = said["trees"]["rows"]
    assert (rows < 150_000) == (budget == "700MB" or shape[0] < 100_000)


def test_ten_times_the_rows_take_no_more_memory(tmp_path):
    few, many = 200_000, 2_000_000  # few are enough to have every block alive that ever is
    trained, predicted = {}, {}
    for rows in (few, many):
        data = big_zarr(tmp_path / f"{rows}.zarr", rows, 8, 20_000)
        model = tmp_path / f"{rows}.model"
        trained[rows] = measured("train", data, "--D", "20", "--bits", "8", *FIXED, "--out", model)[1]
        out = tmp_path / f"{rows}.parquet"
        predicted[rows] = measured("predict", model, data, "--out", out, "--threads", "2", "--json")[1]
    assert trained[many] <= 1.05 * trained[few]
    assert predicted[many] <= 1.05 * predicted[few]


def test_the_sample_does_not_keep_the_chunks_it_came_from():
    X, y = smooth(4000)
    source = ArraySource(X, y, chunk_rows=500)  # it hands out views, which a careless sample would hold on to
    sample = draw_sample(source, 200, 0, "error")
    parts = list(_read(source, random_runs(4000, 200, np.random.default_rng(0))))
    assert 150 < len(sample) <= 200
    assert not any(np.shares_memory(part.X, X) for part in parts)


class Unreadable(ArraySource):
    """Shapes without rows."""

    def read(self, span):
        raise AssertionError("planning read rows")

    read_targets = read


def test_planning_reads_no_rows(monkeypatch):
    measured = Rates(projection=1e9, cosines=1e9, gram=1e11, factor=1e10)
    monkeypatch.setattr(rates, "rates_of_this_machine", lambda bits, threads: measured)
    source = Unreadable(*smooth(1000), chunk_rows=100)
    plan = plan_run(source, Recipe(D=5000), outputs=1, threads=2, budget=None)
    plan.check()
    assert estimate_run(plan)["total"] > 0


@pytest.mark.parametrize(("recipe", "outputs", "classes", "asked"), [
    (Recipe(), 1, False, "20"), (Recipe(), 1, True, "20"), (Recipe(), 3, True, "auto"),
    (Recipe(bits="8", map="blend"), 1, False, "8"), (Recipe(D=100), 1, False, "auto"),
])  # fmt: skip
def test_exact_sums_of_landmarks_are_estimated_at_the_precision_they_mostly_have(
    monkeypatch, recipe, outputs, classes, asked
):
    """A pass at 20 bits takes eight times as long as one at 12."""
    seen: list[str] = []

    def rates_at(bits: str, threads: int) -> Rates:
        seen.append(bits)
        return Rates(1e9, 1e9, 1e11, 1e10)

    for module in (rates, planning):
        monkeypatch.setattr(module, "rates_of_this_machine", rates_at)
    source = ArraySource(np.zeros((5000, 3)), np.zeros(5000))
    estimate_run(plan_run(source, recipe, outputs=outputs, threads=1, budget=2**32, classes=classes))
    assert set(seen) == {asked}


@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_landmarks_are_estimated_at_their_own_speed(monkeypatch, solver):
    """An exponential of double precision takes many times as long as a cosine of single precision."""
    monkeypatch.setattr(rates, "rates_of_this_machine", lambda *_: Rates(1e9, 1e9, 1e15, 1e15))
    source, seconds = ArraySource(np.zeros((5000, 3)), np.zeros(5000)), {}
    for speed in (1e6, 2e6):
        monkeypatch.setattr(rates, "landmarks_a_second", lambda bits, threads, d, speed=speed: speed)
        recipe = Recipe(map="landmarks", D=100, bits="float64", solver=solver, ridge=1e-6)
        plan = plan_run(source, recipe, outputs=1, threads=1, budget=2**32)
        seconds[speed] = estimate_run(plan)["pass"]
    assert seconds[1e6] == pytest.approx(2 * seconds[2e6])
    assert seconds[1e6] >= 5000 * 100 / 1e6


def test_the_plan_command_reads_no_rows(tmp_path, monkeypatch):
    big_zarr(tmp_path / "t.zarr", 1000, 4, 500)
    monkeypatch.setattr(ZarrSource, "_features", Unreadable.read)
    monkeypatch.setattr(ZarrSource, "_targets", Unreadable.read)
    assert streamrf("plan", tmp_path / "t.zarr", "--D", "100").code == 0


@pytest.mark.parametrize("options", [("--D", "4000"), ("--D", "1000", "--preconditioner", "nystrom")])
def test_iterative_routes_keep_to_the_plan(tmp_path, options):
    data = big_zarr(tmp_path / "t.zarr", 3000, 4, 500)
    fixed = (*FIXED, "--solver", "cg", "--bits", "8", "--out", tmp_path / "m.model")
    said, peak = measured("train", data, *options, *fixed)
    assert peak <= said["memory"]["projected"] <= said["memory"]["budget"]


def test_a_plan_that_does_not_fit_shows_itself_and_says_both_numbers(tmp_path):
    data = big_zarr(tmp_path / "t.zarr", 1000, 4, 500)
    answer = streamrf("plan", data, "--D", "20000", "--solver", "cholesky", "--memory", "1GB", "--json")
    projected = answer.json["memory"]["projected"]
    assert answer.code == 6
    assert projected > 10**9
    assert f"{projected / 1e9:.2f} GB" in answer.sentence
    assert "the budget is 1.00 GB" in answer.sentence


def test_peak_memory_is_our_own_and_not_our_parents():
    code = "from streamrf.support import memory; print(memory.peak())"
    ballast = np.ones(50_000_000)
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert int(child.stdout) < ballast.nbytes / 2
