"""What the iterative routes take: their memory beside that of the direct one, and times to choose between the two."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from streamrf.data.screening import RowCache
from streamrf.data.source import Source
from streamrf.features.precision import make_precision
from streamrf.features.scores import batch_rows
from streamrf.solvers.rates import Rates, measure_rates
from streamrf.solvers.sizes import drawn_rows, is_sketched, parts_of_a_leg, preconditioner_bytes, sample_rows
from streamrf.statistics.gradient import KEPT_BYTES
from streamrf.statistics.kept_features import KeptFeatures
from streamrf.support.threads import Threads

PULLING, EACH = 0.15, 0.11  # scores and pulls, and those of each output, in units of the cosines of a pass
STEPS = {"cg": 25, "newton": 40, "sgd": 5}  # passes that are usual; hold-out rows end them
CROSSING = 3000  # features below which Cholesky is not worth doubting
WORTH = 0.5  # of the direct route's time: its sums allow update, forget and merge, so a tie is not enough
LAMBDAS = 3  # that share the passes of conjugate gradients
SHORT = 300.0  # seconds that the direct route may take without a second thought: so much its sums are worth
VECTORS = {"cg": 12 * LAMBDAS, "newton": 34, "sgd": 12}  # arrays of outputs x D that are alive, float64

ALIVE = {  # the parts that are alive in each stage
    "pilot": ("pilot", "sample"),
    "pass": ("statistics", "block", "vectors", "reading", "hold-out rows", "rows that precondition", "features kept"),
    "solve": ("statistics", "block", "vectors", "preconditioner", "reading", "hold-out rows", "judging",
              "rows that precondition", "features kept"),
}  # fmt: skip
CURES = {
    "vectors": "lower --D",
    "preconditioner": "lower --D",
    "rows that precondition": "lower --D",
    "features kept": "lower --D",
}


def iterative_parts(
    source: Source, recipe: Any, solver: str, outputs: int, threads: int, room: int, sample: int | None = None
) -> dict[str, int]:
    """Bytes of what only an iterative route has; ``sample`` is the size of one that was begun with, if one was."""
    D, item, recipe = recipe.D, _item(recipe), recipe.with_(solver=solver)
    rows = sample or sample_rows(recipe, source.n_rows, room)
    kept, widest = min(drawn_rows(recipe, rows), source.n_rows), max(outputs + 1, LAMBDAS * outputs)
    columns = max(widest, rows) if is_sketched(recipe) else widest
    ends = (2 * outputs * 8 * (D + 1) + 8) * _parts_of_a_leg(source, recipe) if solver == "sgd" else 0
    return {
        "statistics": max(columns * 8 * (D + 64), ends),
        "block": threads * (2 * columns * 8 + batch_rows(item * (D + 64), KEPT_BYTES) * item) * (D + 64),
        "vectors": VECTORS[solver] * outputs * 8 * D,
        "preconditioner": preconditioner_bytes(recipe, rows),
        "rows that precondition": 3 * kept * (source.n_features * max(4, source.x_dtype.itemsize) + 8 * outputs + 16),
    }


def _parts_of_a_leg(source: Source, recipe: Any) -> int:
    return parts_of_a_leg(source.n_rows, source.n_features * source.x_dtype.itemsize, recipe.shards or 1)


def kept_bytes(source: Source, recipe: Any, room: int) -> int:
    """What the features of all rows take, if that fits into the room that is left; nothing where it does not."""
    needed = KeptFeatures.nbytes(source.n_rows, recipe.D, _item(recipe)) + RowCache.nbytes(source)
    return needed if needed <= room else 0


def _item(recipe: Any) -> int:
    """Bytes of a feature, at most."""
    return 8 if recipe.bits == "auto" else make_precision(recipe.bits).features.itemsize


def iterative_seconds(
    source: Source, recipe: Any, solver: str, outputs: int, rates: Rates, *, room: int, kept: bool
) -> dict[str, float]:
    """Time of the passes, and of the preconditioner; features that are kept are made once."""
    n, D, d = source.n_rows, recipe.D, source.n_features
    features = n * D / rates.features(d)
    together = LAMBDAS if solver == "cg" and recipe.ridge is None else 1
    pulling = _pulling(n * D, outputs * together, rates)
    reading = n * d * source.x_dtype.itemsize / rates.read
    recipe = recipe.with_(solver=solver)
    m = sample_rows(recipe, n, room)
    if is_sketched(recipe):
        sketch = max(features + _pulling(n * D, m, rates), reading)
    else:  # a Gram matrix of features or of rows, and its factor
        few, many = sorted((m, D))
        sketch = float(few) * few * many / rates.gram + float(few) ** 3 / 3 / rates.factor
    passes = recipe.epochs or STEPS[solver]
    step = pulling if kept else max(features + pulling, reading)
    return {"pass": max(features, reading), "solve": sketch + passes * step}


def _pulling(features: int, outputs: int, rates: Rates) -> float:
    return features * (PULLING + EACH * outputs) / rates.cosines


@lru_cache(maxsize=4)
def rates_of_this_machine(bits: str, threads: int) -> Rates:
    """Measured once, in about a second."""
    with Threads(threads) as pool:
        return measure_rates("8" if bits == "auto" else bits, pool)
