"""Compile before it is waited for: beside a first run, or once for an image (`streamrf warm`).

Made-up tables are trained on, so that what is compiled is what runs call, whatever that is by then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from streamrf.data.readers.memory import ArraySource
from streamrf.features.binning.normal import look_up
from streamrf.features.fourier.landmarks import landmark_values
from streamrf.features.fourier.map import cosines
from streamrf.features.precision import LIMITS, PRECISIONS
from streamrf.features.trees.cuts import grow_below
from streamrf.recipe import ANY, AUTO, BINNING, BLEND, LANDMARKS, NONE, TREES, Recipe
from streamrf.statistics.gram_kernels import proven_products
from streamrf.support import memory
from streamrf.support.compiled import is_cached
from streamrf.support.errors import StreamRFError
from streamrf.support.progress import PlanSummary, Reporter
from streamrf.support.threads import Threads, available_cores
from streamrf.training.run import Settings, Training

ROWS, COLUMNS = 256, 3
ROOM = 2 * (memory.LIBRARIES + memory.COMPILED)  # that must be free for a process that compiles
FOURIER = Recipe(D=16, bits="12", kernel="gaussian", scaling="quantile", pilot=NONE)
LANDMARKED = FOURIER.with_(map=LANDMARKS, bits="20", ridge=1e-3)  # the precision of its trials
FEW_BITS = LANDMARKED.with_(bits="7")  # and the one that most runs choose
BINNED = Recipe(map=BINNING, grids=2, table_bits=4, scaling="quantile")
GROWN = Recipe(map=TREES, scaling="quantile", pilot=NONE)
BLENDED = Recipe(map=BLEND, D=16, grids=2, table_bits=4)


class _Silent(Reporter):
    """Nobody asked for these models, so not even the log tells of them."""

    def note(self, text: str) -> None: ...
    def detail(self, text: str) -> None: ...
    def planned(self, plan: PlanSummary) -> None: ...
    def tried(self, trial: object) -> None: ...
    def started(self, what: str, rows: int, done: int) -> None: ...
    def finished(self) -> None: ...
    def settled(self, chosen: dict[str, object]) -> None: ...


def made_up(classes: int = 0) -> ArraySource:
    """A small table, of numbers or of classes to predict."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS))
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(ROWS)
    return ArraySource(X, np.digitize(y, np.quantile(y, np.arange(1, classes) / classes)) if classes else y)


def train_on(source: ArraySource, recipe: Recipe, threads: Threads) -> None:
    Training(source, recipe, Settings(), _Silent(), threads).run()


def compile_all() -> Iterator[str]:
    """Compile all that runs with nothing set may call; says each time what for."""
    yield "many rows"
    for bits in LIMITS:
        proven_products(bits)  # few rows do without
    with Threads() as threads:
        for name, source in (("numbers", made_up()), ("two classes", made_up(2)), ("three classes", made_up(3))):
            yield name
            for precision in PRECISIONS:
                train_on(source, FOURIER.with_(bits=precision), threads)
                train_on(source, LANDMARKED.with_(bits=precision), threads)
            train_on(source, FOURIER.with_(bits=AUTO, kernel=AUTO, scaling=AUTO, pilot=AUTO), threads)
            train_on(source, BLENDED, threads)


@contextmanager
def compiling(recipe: Recipe) -> Iterator[None]:
    """Beside the work within, compile in another process what the cache does not have yet: numba compiles in one thread
    of a process at a time. Each of both takes from the cache what the other compiled."""
    if not (_missing(recipe) and _has_room()):
        yield
        return
    program = f"from {__name__} import compile_for; compile_for()"
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", program, json.dumps(recipe.to_json())], env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as compiler:  # fmt: skip
        try:
            yield
        finally:
            compiler.terminate()


def _has_room() -> bool:
    """Whether another Python can be started, with a core and memory of its own."""
    python = sys.executable and not getattr(sys, "frozen", False)
    return bool(python) and available_cores() > 1 and memory.available() >= ROOM


def compile_for() -> None:
    """What that process does, of the recipe that it is given."""
    recipe = Recipe.from_json(json.loads(sys.argv[1]))
    with Threads(1) as one:
        for step in _missing(recipe):
            with suppress(StreamRFError, MemoryError):  # the run itself will tell what is wrong
                train_on(made_up(), step, one)


def _missing(recipe: Recipe) -> list[Recipe]:
    """Small runs that compile what a run needs and the cache lacks, last things first: the run itself begins with trees
    and random binning."""
    fourier = FOURIER if recipe.bits == AUTO else FOURIER.with_(bits=recipe.bits)
    binned = BINNED.with_(pilot=recipe.pilot)
    blends = recipe.map in (ANY, BLEND)
    steps = (
        (blends or recipe.map == LANDMARKS, landmark_values, (LANDMARKED, FEW_BITS)),
        (not blends and recipe.map not in (LANDMARKS, BINNING, TREES), cosines, (fourier,)),
        (blends or recipe.map == BINNING, look_up, (binned,)),
        (blends or recipe.map == TREES, grow_below, (GROWN,)),
    )
    return [each for wanted, kernel, some in steps if wanted and not is_cached(kernel) for each in some]
