"""Settings that all tests share. Helper modules beside the tests (tables, commands, ...) are imported by their name."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow, not wrong: no deadlines.
settings.register_profile("streamrf", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("streamrf")

# Tests start many processes, and each would compile our modules again where Python is told to keep nothing.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run side by side; our own threads are asked for by name

# Files that take longest, in that order: begun first, none of them is left to one process while others have nothing.
LONGEST = (
    "test_faults.py", "test_bench.py", "test_memory.py", "test_collections_cluster.py", "test_blend.py", "test_docs.py",
    "test_cluster.py", "test_examples.py", "test_pilot_log.py", "test_sanity.py", "test_convert.py",
    "test_learned_training.py", "test_frequencies.py", "test_report.py", "test_warm.py", "test_golden_digests.py",
    "test_cli.py", "test_estimator_checks.py", "test_tree_models.py", "test_wall.py", "test_export.py",
    "test_binning_route.py", "test_quickstart.py", "test_conventions.py", "test_kernel_pilot.py", "test_metric.py",
    "test_training.py", "test_solvers.py", "test_public.py", "test_display.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Several processes take files in this order (``--no-loadscope-reorder``)."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """What a killed process wrote stays, and a power cut is nothing that a test can make: the order of calls that it
    would tell of is tested in test_malformed.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def in_little_time() -> Iterator[None]:
    """Blends of small tables in fewer turns, and shorter trials of trees: for files that train many of them."""
    from streamrf.features.trees import boosting
    from streamrf.solvers import stacking

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacking, "TURNS", 2)
        patch.setattr(boosting, "TRIED", 10)
        yield
