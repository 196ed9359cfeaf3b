"""A pilot that was interrupted: finished trials are kept, and the run that resumes it chooses what one without a break
would have chosen."""

import json
import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import done, start, streamrf
from tables import labelled, smooth, write_zarr

from streamrf import Recipe, Settings
from streamrf.data.readers.memory import ArraySource
from streamrf.features.learned.kernel_ridge import Fit
from streamrf.models.model import Model
from streamrf.support.progress import Interrupted, Reporter
from streamrf.support.storage.checkpoint import Checkpoint
from streamrf.training.pilot import fourier
from streamrf.training.pilot.choice import Choice, Trial
from streamrf.training.pilot.log import STEP_BYTES, TrialLog, can_resume, pilot_place
from streamrf.training.run import train


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(fourier, "KERNELS", ("gaussian", "laplacian"))


@pytest.fixture(autouse=True)
def heeded():
    """A shell starts its background jobs with Ctrl-C ignored, and the tests with them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class StopsAfter(Reporter):
    """Ctrl-C after so many trials."""

    def __init__(self, trials):
        self.left = trials

    def tried(self, trial):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGINT)


class Counts(Reporter):
    def __init__(self):
        self.notes, self.trials = [], 0

    def note(self, text):
        self.notes.append(text)

    def tried(self, trial):
        self.trials += 1


CASES = {
    "numbers": (smooth(500), Recipe(D=24)),
    "classes": (labelled(500, classes=3), Recipe(D=24)),
    "metric": (smooth(500), Recipe(D=24, kernel="gaussian", metric="diagonal")),
    "any": (smooth(140), Recipe(D=24, map="any", grids=4)),  # too few for a blend
    "robust": (smooth(500), Recipe(D=24, kernel="gaussian", loss="huber")),
}


def bits(model):
    trials = [{key: value for key, value in trial.items() if key != "seconds"} for trial in model.metadata["pilot"]]
    return model.recipe.to_json(), model.metadata["statistics_digest"], model.weights.coefficients.tobytes(), trials


@pytest.mark.parametrize("case", CASES)
def test_the_choice_is_that_of_a_run_without_a_break(tmp_path, case, monkeypatch):
    (X, y), recipe = CASES[case]
    whole = Counts()
    reference = train(ArraySource(X, y), recipe, Settings(threads=1), whole).model
    settings = Settings(threads=1, checkpoint=tmp_path / "kept")
    for trials in (3, whole.trials // 2):
        with pytest.raises(Interrupted, match=r"stopped in the pilot: [1-9][0-9]* trials are kept in"):
            train(ArraySource(X, y), recipe, settings, StopsAfter(trials))
        assert can_resume(tmp_path / "kept")
        assert not Checkpoint(tmp_path / "kept").exists()
    fits, measure = [], fourier.PilotRun.measure
    monkeypatch.setattr(fourier.PilotRun, "measure", lambda run, trial: fits.append(trial) or measure(run, trial))
    resumed = Counts()
    model = train(ArraySource(X, y), recipe, settings, resumed).model
    assert bits(model) == bits(reference)
    assert any("trials of the pilot are done already" in note for note in resumed.notes)
    assert len(fits) < whole.trials - 2
    assert not (tmp_path / "kept").exists()


def test_random_binning_is_kept_once_it_is_done(tmp_path):
    (X, y), recipe = smooth(2100), Recipe(D=24, map="blend", grids=4)
    whole, settings = Counts(), Settings(threads=1, checkpoint=tmp_path / "kept")
    reference = train(ArraySource(X, y), recipe, Settings(threads=1), whole).model
    with pytest.raises(Interrupted):  # at the trial in which both are compared
        train(ArraySource(X, y), recipe, settings, StopsAfter(whole.trials))
    log = Checkpoint(pilot_place(tmp_path / "kept"))
    assert log.exists()
    again = Counts()
    assert bits(train(ArraySource(X, y), recipe, settings, again).model) == bits(reference)
    assert again.trials < whole.trials  # the trials of widths are not shown again


def test_another_run_starts_over(tmp_path):
    (X, y), recipe = CASES["numbers"]
    settings = Settings(threads=1, checkpoint=tmp_path / "kept")
    with pytest.raises(Interrupted):
        train(ArraySource(X, y), recipe, settings, StopsAfter(3))
    other = recipe.with_(seed=5)
    expected = bits(train(ArraySource(X, y), other, Settings(threads=1)).model)
    told = Counts()
    assert bits(train(ArraySource(X, y), other, settings, told).model) == expected
    assert not any("trials of the pilot" in note for note in told.notes)


@pytest.mark.parametrize("damage", ["trials", "losses"])
def test_a_damaged_log_is_not_used(tmp_path, damage):
    identity = {"data": "x"}
    asked = Trial("standard", "gaussian", 2.0, 8, "8", 10)
    log = TrialLog(tmp_path / "kept", identity)
    log.record(asked, asked, np.ones(3))
    log.save()
    assert TrialLog(tmp_path / "kept", identity).count == 1
    name = next((tmp_path / "kept" / "pilot").glob("*.json" if damage == "trials" else "*.safetensors"))
    name.write_bytes(name.read_bytes()[:-3] + b"\0\0\0")
    assert TrialLog(tmp_path / "kept", identity).count == 0


def test_what_is_asked_for_decides():
    log, first, second = TrialLog(), *(Trial("standard", "gaussian", width, 8, "8", 10) for width in (1.0, 2.0))
    log.record(first, first, np.ones(2))
    log.record(second, second, np.ones(2))
    log._next = 0
    assert log.recall(first) is not None
    assert log.recall(first) is None  # the second was another
    assert log.count == 1
    assert TrialLog().stopped().args == ("stopped in the pilot, and nothing was kept",)


def test_ctrl_c_on_the_command_line(tmp_path, monkeypatch):
    data = write_zarr(tmp_path / "d.zarr", *smooth(500))
    command = ("train", data, "--D", "24", "--threads", "1", "--out", tmp_path / "m.model", "--json")
    assert "there is no checkpoint" in streamrf(*command, "--resume").sentence
    reference = done(*command).json["statistics_digest"]
    with monkeypatch.context() as now:
        now.setattr("streamrf.cli.display.make_reporter", lambda **_: StopsAfter(4))
        stopped = streamrf(*command, "--overwrite")
    assert stopped.code == 130
    assert stopped.err.splitlines()[0].startswith("streamrf: stopped in the pilot: ")
    assert stopped.err.splitlines()[1].startswith("continue with: streamrf train ")
    assert done(*command, "--overwrite", "--resume").json["statistics_digest"] == reference


# -- steps of searches


BLEND = ("--map", "any", "--target", "y", "--threads", "2", "--quiet", "--json")


@pytest.fixture(scope="module")
def five_classes(tmp_path_factory):
    """A table that the whole pilot of a blend looks at: with a category coded by the target, and with more classes than
    gradients are taken of."""
    folder = tmp_path_factory.mktemp("classes")
    X, y = labelled(2200, classes=5)
    names = np.random.default_rng(0).integers(0, 40, 2200)
    table = {f"x{j}": X[:, j] for j in range(X.shape[1])} | {"place": [f"p{name}" for name in names], "y": y}
    pq.write_table(pa.table(table), folder / "t.parquet")
    model = done("train", folder / "t.parquet", *BLEND, "--out", folder / "whole.model").json
    return folder / "t.parquet", model["statistics_digest"], Model.load(folder / "whole.model")


@pytest.mark.parametrize("kind", ["killed-in-pilot", "stopped-in-pilot"])
def test_single_steps_survive_in_real_processes(five_classes, tmp_path, kind):
    """Each process goes on where the one before was ended, and the last has the bits of one without a break."""
    data, digest, whole = five_classes
    command = ("train", data, *BLEND[:-2], "--out", tmp_path / "m.model")
    kept = 0
    for steps in (2, 6, 12):
        process = start(kind, steps, *command, module="tests.interruptions")
        told = process.communicate()[1]
        assert process.returncode == (-signal.SIGKILL if kind == "killed-in-pilot" else 130), told
        found = steps_in(tmp_path / "m.model.checkpoint")
        assert found >= max(steps, kept), told  # Ctrl-C keeps what was under way as well
        kept = found
    resumed = done("train", data, *BLEND, "--out", tmp_path / "m.model", "--resume").json
    model = Model.load(tmp_path / "m.model")
    assert resumed["statistics_digest"] == digest
    assert bits(model) == bits(whole)


def steps_in(checkpoint):
    (saved,) = sorted((checkpoint / "pilot").glob("*.json"))[-1:]
    return len(json.loads(saved.read_text())["extra"]["steps"])


@pytest.mark.parametrize("outputs", [1, 5])
def test_fits_come_back_with_their_bits_and_their_order_in_memory(tmp_path, outputs):
    coefficients = np.asfortranarray(np.random.default_rng(0).standard_normal((7, outputs)))
    fit, none = Fit("gaussian", 0.1, 1e-7, 0.25, coefficients), Fit("laplacian", 3.0)
    log = TrialLog(tmp_path / "kept", {})
    assert log.fit("landmarks: a", lambda: fit) is fit
    log.fit("landmarks: b", lambda: none)
    assert log.figure("trees: c", lambda: np.inf) == np.inf
    log.save()
    again = TrialLog(tmp_path / "kept", {})
    found = again.fit("landmarks: a", pytest.fail)
    assert vars(found) | {"coefficients": None} == vars(fit) | {"coefficients": None}
    assert found.coefficients.tobytes("A") == coefficients.tobytes("A")
    assert found.coefficients.flags.f_contiguous
    assert vars(again.fit("landmarks: b", pytest.fail)) == vars(none)
    assert again.figure("trees: c", pytest.fail) == np.inf
    again.chosen("landmarks", lambda: Choice(Recipe(D=8)))
    assert TrialLog(tmp_path / "kept", {}).count == 1  # the choice has taken the place of its steps


def test_steps_without_a_checkpoint_and_large_ones_are_not_kept(tmp_path):
    large = Fit("gaussian", 1.0, coefficients=np.zeros((STEP_BYTES // 8 + 1, 1)))
    log = TrialLog(tmp_path / "kept", {})
    log.fit("landmarks: a", lambda: large)
    assert log.count == 0
    log = TrialLog()
    log.figure("trees: a", lambda: 1.0)
    assert log.count == 0
