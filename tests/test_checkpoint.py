"""Checkpoints: whatever happens, what is loaded is one of the saved states, whole and with its own ledger."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid

import fsspec
import numpy as np
import pytest

from streamrf.statistics.rowset import Ledger, RowSet
from streamrf.support.errors import FileFormatError, MismatchError, MissingDependencyError, StorageError
from streamrf.support.redaction import without_credentials
from streamrf.support.storage.backends import FsspecStorage, LocalStorage, open_storage
from streamrf.support.storage.checkpoint import Checkpoint, Clock

IDENTITY = {"data": "d1", "recipe": {"kernel": "gaussian", "D": 10}}


def state(number):
    """A state whose ledger and arrays show whether they belong together."""
    return RowSet([(0, number)]), {"total": np.full(100, number), "y": np.array(float(number))}


def save(checkpoint, number, identity=IDENTITY):
    checkpoint.save(identity, *state(number), {"number": number})


def number_of(saved):
    """Which state was loaded, having checked that all its parts agree."""
    rows, arrays = state(saved.extra["number"])
    assert RowSet.from_json(saved.ledger) == rows
    assert saved.arrays.keys() == arrays.keys()
    assert all(np.array_equal(saved.arrays[name], array) for name, array in arrays.items())
    return saved.extra["number"]


@pytest.fixture(params=["local", "memory", "file-url"])
def place(request, tmp_path):
    return {
        "local": str(tmp_path / "deep" / "checkpoint"),
        "memory": f"memory://{uuid.uuid4().hex}/checkpoint",
        "file-url": f"file://{tmp_path}/checkpoint",
    }[request.param]


class Folder:
    """Look at, and damage, what a checkpoint wrote, wherever it is."""

    def __init__(self, place):
        self.system, self.root = fsspec.core.url_to_fs(place)

    def names(self, ending=""):
        paths = self.system.ls(self.root, detail=False) if self.system.exists(self.root) else []
        return sorted(p.rsplit("/", 1)[-1] for p in paths if p.endswith(ending))

    def change(self, name, change):
        path = f"{self.root}/{name}"
        self.system.pipe_file(path, change(self.system.cat_file(path)))


def test_nothing_there_yet(place):
    assert Checkpoint(place).load(IDENTITY) is None
    assert Folder(place).names() == []  # looking makes nothing


def test_the_newest_save_is_loaded(place):
    checkpoint = Checkpoint(place)
    for number in (1, 2, 3):
        before = time.time()
        save(checkpoint, number)
        saved = Checkpoint(place).load(IDENTITY)
        assert number_of(saved) == number
        assert before <= saved.saved_at <= time.time()
    assert len(Folder(place).names()) == 4  # the last two, two files each


def test_a_run_resumes_from_a_loaded_save(place):
    save(Checkpoint(place), 1)
    resumed = Checkpoint(place)
    assert number_of(resumed.load(IDENTITY)) == 1
    save(resumed, 2)
    assert number_of(Checkpoint(place).load(IDENTITY)) == 2


def test_a_ledger_of_shards_is_kept_too(place):
    ledger = Ledger()
    ledger.add("f1", "a.zarr", 10, RowSet([(0, 5)]))
    Checkpoint(place).save(IDENTITY, ledger, {}, {})
    assert Ledger.from_json(Checkpoint(place).load(IDENTITY).ledger) == ledger


def test_another_identity_is_refused_naming_what_differs(place):
    save(Checkpoint(place), 1)
    other = {"data": "d2", "recipe": {"kernel": "gaussian", "D": 20}, "bits": 8}
    expected = r"bits is absent there and 8 here; data is 'd1' there and 'd2' here; recipe\.D is 10 there and 20 here"
    with pytest.raises(MismatchError, match=expected):
        Checkpoint(place).load(other)
    with pytest.raises(MismatchError, match=expected):
        save(Checkpoint(place), 1, other)
    assert number_of(Checkpoint(place).load(IDENTITY)) == 1


def flip_last_byte(data):
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def flip_in_ledger(data):
    assert data.count(b'"ledger"') == 1
    return data.replace(b'"ledger"', b'"lodger"')


DAMAGE = {
    "arrays altered": (".safetensors", flip_last_byte),
    "arrays cut": (".safetensors", lambda data: data[: len(data) // 2]),
    "arrays emptied": (".safetensors", lambda data: b""),
    "ledger altered": (".json", flip_in_ledger),
    "ledger cut": (".json", lambda data: data[:-20]),
    "ledger emptied": (".json", lambda data: b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_save_falls_back_to_the_one_before(place, damage):
    ending, change = DAMAGE[damage]
    checkpoint, folder = Checkpoint(place), Folder(place)
    save(checkpoint, 1)
    save(checkpoint, 2)
    newest = folder.names(ending)[-1]
    folder.change(newest, change)
    resumed = Checkpoint(place)
    with pytest.warns(UserWarning, match=rf"{newest}.*save before it \(number 1\), which is whole"):
        assert number_of(resumed.load(IDENTITY)) == 1
    save(resumed, 3)
    assert number_of(Checkpoint(place).load(IDENTITY)) == 3
    assert newest not in folder.names()
    folder.change(folder.names(ending)[-1], change)
    with pytest.warns(UserWarning, match="The run resumes from the save before it"):
        assert number_of(Checkpoint(place).load(IDENTITY)) == 1


def test_no_whole_save_left_is_an_error(place):
    folder = Folder(place)
    save(Checkpoint(place), 1)
    folder.change(folder.names(".safetensors")[0], flip_last_byte)
    with pytest.raises(FileFormatError, match=r"safetensors has the SHA-256 .* No whole save is left"):
        Checkpoint(place).load(IDENTITY)


def test_missing_arrays_are_damage(place):
    folder = Folder(place)
    save(Checkpoint(place), 1)
    folder.system.rm_file(f"{folder.root}/{folder.names('.safetensors')[0]}")
    with pytest.raises(FileFormatError, match="has 0 bytes and should have"):
        Checkpoint(place).load(IDENTITY)


def test_arrays_without_their_ledger_do_not_count_and_are_removed(place):
    """What a crash leaves between the two files of a save."""
    checkpoint, folder = Checkpoint(place), Folder(place)
    save(checkpoint, 1)
    orphan = "save-00000002-00000000.safetensors"
    folder.system.pipe_file(f"{folder.root}/{orphan}", b"half")
    resumed = Checkpoint(place)
    assert number_of(resumed.load(IDENTITY)) == 1
    save(resumed, 2)
    assert orphan not in folder.names()


def test_a_second_run_on_the_same_checkpoint_is_noticed(place):
    first, second = Checkpoint(place), Checkpoint(place)
    assert first.load(IDENTITY) is second.load(IDENTITY) is None
    save(first, 1)
    with pytest.raises(MismatchError, match="Another run has saved to the checkpoint"):
        save(second, 2)
    save(first, 3)
    assert number_of(Checkpoint(place).load(IDENTITY)) == 3


def test_clear_removes_our_files_only(place):
    checkpoint, folder = Checkpoint(place), Folder(place)
    save(checkpoint, 1)
    save(checkpoint, 2)
    folder.system.pipe_file(f"{folder.root}/notes.json", b"mine")
    checkpoint.clear()
    assert folder.names() == ["notes.json"]
    save(checkpoint, 3)
    folder.system.rm_file(f"{folder.root}/notes.json")
    checkpoint.clear()
    assert not folder.system.exists(folder.root)
    assert checkpoint.load(IDENTITY) is None
    checkpoint.clear()  # nothing there is fine


def test_a_newer_protocol_is_refused(place):
    from streamrf.support.storage import safejson

    def newer(data):
        document = json.loads(data)
        del document["sha256"]
        return safejson.seal(document | {"protocol": 9}, "test")

    folder = Folder(place)
    save(Checkpoint(place), 1)
    folder.change(folder.names(".json")[0], newer)
    with pytest.raises(FileFormatError, match=r"protocol 9, .* reads up to 1"):
        Checkpoint(place).load(IDENTITY)


def test_a_save_that_fails_leaves_the_one_before(place, monkeypatch):
    checkpoint = Checkpoint(place)
    save(checkpoint, 1)

    def fail(stream, *_, **__):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("streamrf.support.storage.checkpoint.write_tensors", fail)
        with pytest.raises(StorageError, match="Could not write"):
            save(checkpoint, 2)
    assert number_of(Checkpoint(place).load(IDENTITY)) == 1
    save(checkpoint, 3)
    assert number_of(Checkpoint(place).load(IDENTITY)) == 3


SAVE_FOR_EVER = """
import sys, numpy as np
from streamrf.support.storage.checkpoint import Checkpoint
from streamrf.statistics.rowset import RowSet
identity = {"data": "d1", "recipe": {"kernel": "gaussian", "D": 10}}
checkpoint = Checkpoint(sys.argv[1])
saved = checkpoint.load(identity)
number = saved.extra["number"] if saved else 0
print("ready", flush=True)
while True:
    number += 1
    arrays = {"total": np.full(100, number), "y": np.array(float(number))}
    checkpoint.save(identity, RowSet([(0, number)]), arrays, {"number": number})
    print("saved", flush=True)
"""


def test_kill_9_at_any_moment_leaves_a_whole_state(tmp_path):
    place, reached = tmp_path / "checkpoint", 0
    moments = random.Random(20240607)
    for attempt in range(10):
        run = subprocess.Popen([sys.executable, "-c", SAVE_FOR_EVER, place], stdout=subprocess.PIPE)
        assert run.stdout.readline() == b"ready\n"
        if attempt == 0:  # at least one save, however busy the machine is
            assert run.stdout.readline() == b"saved\n"
        time.sleep(moments.uniform(0.0, 0.08))
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        run.stdout.close()
        saved = Checkpoint(place).load(IDENTITY)
        if saved is not None:
            assert number_of(saved) >= reached
            reached = number_of(saved)
    assert reached > 0
    Checkpoint(place).clear()
    assert not place.exists()


def test_places_are_told_apart(tmp_path):
    assert isinstance(open_storage(tmp_path), LocalStorage)
    assert isinstance(open_storage(f"file://{tmp_path}"), LocalStorage)
    assert isinstance(open_storage("memory://x"), FsspecStorage)


def test_an_unknown_or_missing_store_gets_a_sentence():
    with pytest.raises(StorageError, match="Could not open nosuch://place"):
        open_storage("nosuch://place")
    with pytest.raises((MissingDependencyError, StorageError), match="Could not open hdfs://"):
        open_storage("hdfs://nowhere/x")


def test_credentials_in_a_url_are_never_shown():
    assert without_credentials("s3://key:secret@bucket/a") == "s3://bucket/a"
    with pytest.raises(StorageError) as caught:
        open_storage("nosuch://key:secret@place")
    assert "secret" not in str(caught.value)


# --- when to save


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_save_is_due_after_the_interval():
    now = Time()
    clock = Clock(60, now=now)
    assert not clock.due()
    now.now += 59
    assert not clock.due()
    now.now += 1
    assert clock.due()
    with clock.saving():
        now.now += 1
    assert not clock.due()
    assert clock.age == 0
    now.now += 60
    assert clock.due()


@pytest.mark.parametrize("took", [0.1, 3, 10, 100])
def test_slow_saves_stay_below_five_per_cent_of_the_run(took):
    now, saving = Time(), 0.0
    clock = Clock(60, now=now)
    while now.now < 100_000:
        now.now += 1
        if clock.due():
            with clock.saving():
                now.now += took
            saving += took
    assert 0 < saving <= 0.05 * (now.now - 100) + took
    if took == 0.1:
        assert clock.interval == 60


def test_zero_means_at_every_chance():
    now = Time()
    clock = Clock(0, now=now)
    with clock.saving():
        now.now += 100
    assert clock.due()


def test_a_failed_save_is_not_tried_again_at_once():
    now = Time()
    clock = Clock(60, now=now)
    now.now += 60
    with pytest.raises(StorageError), clock.saving():
        raise StorageError("full")
    assert not clock.due()
