"""The model behind docs/scaling.md: its clock against plain arithmetic, its tables against the page."""

import sys

import numpy as np
import pytest
from commands import PROJECT

sys.path.insert(0, str(PROJECT / "scripts"))

from benchlib import simulated as model
from benchlib.page.scaled import written_into
from benchlib.places import RESULTS, SCALING
from benchlib.results import read
from benchlib.scaling import fit_rows

FREE = {"add": 0.0, "move": 0.0, "latency": 0.0, "task": 0.0, "state": 0}
KEPT = read(RESULTS / "scaling.json")["cells"]


def costs(**seconds):
    return model.Costs(**{"row": 1e-3, **FREE, **seconds})


def test_where_only_rows_cost_time_clustershare_it():
    assert model.simulate(costs(), 64_000, np.ones(1))["seconds"] == pytest.approx(64.0)
    assert model.simulate(costs(), 64_000, np.ones(4))["seconds"] == pytest.approx(16.0, rel=0.02)


def row_by_row(each, workers):
    """As many rows as workers, given out one at a time."""
    cluster = model.SimulatedWorkers(each, np.ones(workers))
    spans = [model.Span(i, i + 1) for i in range(workers)]
    job = model.Pass.start(model.NoStatistic(), model.ArraySource(np.zeros((workers, 1), np.float32)))
    groups = model.Groups(model.units_of(spans))
    model.Summing(job, cluster, groups, model.Limits(10.0, lambda span: True, rows=1)).run(model.unwatched)
    return cluster


@pytest.mark.parametrize("levels", [1, 3, 6])
def test_equal_parts_meet_in_a_tree(levels):
    """Each worker has one unit of work, all end at once, and then there are ``levels`` steps and a trip."""
    workers = 2**levels
    cluster = row_by_row(costs(add=0.5, move=2.0), workers)
    assert cluster.merges == workers - 1
    assert cluster.clock == pytest.approx(1e-3 + levels * 2.5 + 2.0)
    assert cluster.clock - 1e-3 == pytest.approx(model.merging_seconds(costs(add=0.5, move=2.0), workers))


def test_the_driver_does_one_thing_at_a_time():
    """A thousand workers that are done in no time wait for whoever hands out their work."""
    assert row_by_row(costs(row=0.0, task=0.01), 1000).clock > 1000 * 0.01  # one group each


@pytest.mark.parametrize("workers", [10, 200])
def test_stragglers_are_not_waited_for(workers):
    speeds = np.ones(workers)
    speeds[0] = 0.1
    found = model.simulate(costs(latency=0.01, task=1e-4), workers * 100_000, speeds)
    assert found["seconds"] < 1.25 * found["ideal"]  # the slow one takes a sixth of that for the least piece there is
    assert model.even_shares(costs(), workers * 100_000, speeds) > 8 * found["ideal"]


def test_speeds_have_a_mean_of_one_and_stragglers():
    speeds = model.speeds_of(1000)
    assert speeds.mean() == pytest.approx(1.0)
    assert 5 < (speeds < 0.5).sum() < 50


def test_rows_are_modelled_by_what_was_measured():
    assert fit_rows({D: 3e-9 * D + 8e-12 * D * D for D in (250, 1000, 5000)}) == pytest.approx([3e-9, 8e-12])


def test_the_limit_in_d_is_where_merging_and_summing_take_as_long():
    constants = KEPT["constants"]
    D = model.dominated(constants, 100_000, 100)
    below, above = (model.least_rows(model.Costs.at(constants, int(D * f)), 100) for f in (0.9, 1.1))
    assert above < 100_000 < below
    assert model.dominated(constants, 1, 100) is None


def test_the_page_has_the_numbers_of_the_file():
    page = SCALING.read_text(encoding="utf-8")
    assert written_into(page, KEPT) == page, "run scripts/bench page"
