"""Archives: exact round trips, old ones for ever, damage found and named, and no memory taken on a file's word."""

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tracemalloc
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

import streamrf
from streamrf.support.errors import ExistsError, FileFormatError, InputError, MismatchError, StorageError
from streamrf.support.storage import files, safejson
from streamrf.support.storage.archive import PROTOCOL, check_target, is_archive, read_archive, write_archive
from streamrf.support.storage.tensors import MAX_HEADER_BYTES, HashingReader, read_tensors, write_tensors

GOLDEN = Path(__file__).parent / "golden"
TYPES = ["int8", "uint8", "bool", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64"]

DOCUMENTS = {
    "recipe": {"kernel": "gaussian", "D": 5, "gamma": 0.1, "labels": ["spam", "Eiweiß", "日本"], "none": None},
    "metrics": {"error": 1e-300, "counts": [1, 2, 2**62], "nested": {"deep": [[True], []]}},
}


def sample_arrays():
    """One array of every type, with the largest and smallest values, and the odd shapes."""
    arrays = {name: np.array([[0, 1, 1], [1, 0, 1]]).astype(name) for name in TYPES}
    arrays["extremes"] = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max])
    arrays["special"] = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324])
    arrays["scalar"] = np.array(7.5)
    arrays["empty"] = np.zeros((0, 3), np.float32)
    return arrays


def sample(**changes):
    content = {"kind": "model", "documents": DOCUMENTS, "arrays": {"weights": sample_arrays(), "none": {}}}
    return content | changes


def same(first, second):
    return first.keys() == second.keys() and all(
        (a.dtype, a.shape, a.tobytes()) == (second[k].dtype, second[k].shape, second[k].tobytes())
        for k, a in first.items()
    )


@pytest.fixture
def path(tmp_path):
    write_archive(tmp_path / "model", **sample())
    return tmp_path / "model"


def reseal(path, change):
    """Change the manifest as an attacker could: the digest is made to fit."""
    document = json.loads((path / "archive.json").read_bytes())
    del document["sha256"]
    change(document)
    (path / "archive.json").write_bytes(safejson.seal(document, "test"))


def relist(path, name, data):
    """Replace a file of an archive together with its size and digest."""
    (path / name).write_bytes(data)
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    reseal(path, lambda document: document["files"].update({name: record}))


# --- what is written comes back


def test_round_trip(path):
    archive = read_archive(path, kind="model")
    assert archive.documents == DOCUMENTS
    assert archive.document("recipe") == DOCUMENTS["recipe"]
    assert same(archive.arrays("weights"), sample_arrays())
    assert archive.arrays("none") == {}
    assert (archive.kind, archive.protocol, archive.streamrf_version) == ("model", PROTOCOL, streamrf.__version__)
    assert archive.has_arrays("weights")
    assert not archive.has_arrays("recipe")
    assert archive.array_infos("weights")["scalar"].shape == ()
    assert is_archive(path)
    assert not is_archive(path.parent)
    archive.arrays("weights")["int64"][:] = 5  # ours to change


def test_the_same_content_gives_the_same_bytes(path, tmp_path):
    backwards = dict(reversed(sample_arrays().items()))
    write_archive(tmp_path / "again", **sample(arrays={"weights": backwards, "none": {}}))
    for name in sorted(os.listdir(path)):
        assert (path / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_array_files_are_safetensors(path):
    assert same(load_file(path / "weights.safetensors"), sample_arrays())


def test_files_of_the_safetensors_library_are_read():
    data = save(sample_arrays(), metadata={"made": "elsewhere"})
    assert same(from_bytes(data), sample_arrays())


def to_bytes(arrays):
    stream = BytesIO()
    write_tensors(stream, arrays, "test")
    return stream.getvalue()


def from_bytes(data):
    return read_tensors(HashingReader(BytesIO(data), "test"), len(data))


@given(
    st.lists(st.integers(0, 6), max_size=4),
    st.sampled_from(TYPES),
    st.sampled_from(["C", "F", "big-endian", "strided", "reversed"]),
    st.integers(8, 64),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_layout_is_written_in_c_order(monkeypatch, shape, dtype, layout, piece_bytes):
    monkeypatch.setattr("streamrf.support.storage.tensors.PIECE_BYTES", piece_bytes)
    plain = (np.arange(np.prod(shape, dtype=int)) % 2).reshape(shape).astype(dtype)
    array = {
        "C": lambda: plain,
        "F": lambda: plain.copy(order="F"),
        "big-endian": lambda: plain.astype(plain.dtype.newbyteorder(">")),
        "strided": lambda: np.repeat(plain[None], 2, axis=0)[1],
        "reversed": lambda: np.flip(np.flip(plain).copy()),
    }[layout]()
    assert same(from_bytes(to_bytes({"a": array})), {"a": plain})


def test_writing_and_reading_take_no_second_copy(tmp_path):
    size = 32 * 2**20
    for array in (np.ones(size // 8), np.ones((2048, size // 8 // 2048), order="F"), np.ones(size // 8).astype(">f8")):
        peak = traced_peak(lambda array=array: write_archive(
            tmp_path / "big", kind="statistics", documents={}, arrays={"s": {"a": array}}, overwrite=True
        ))  # fmt: skip
        assert peak < size // 2
        assert traced_peak(lambda: read_archive(tmp_path / "big").arrays("s")) < size * 1.25


def traced_peak(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# --- protocols and kinds


def golden_arrays():
    return {"weights": sample_arrays(), "scaling": {"mean": np.array([0.25, -3.0]), "used": np.array([True, False])}}


@pytest.mark.parametrize("name", sorted(p.name for p in GOLDEN.glob("protocol-*")))
def test_archives_of_every_protocol_load_for_ever(name):
    archive = read_archive(GOLDEN / name, kind="model")
    assert archive.protocol == int(name.removeprefix("protocol-"))
    assert archive.documents == DOCUMENTS
    assert {file: same(archive.arrays(file), arrays) for file, arrays in golden_arrays().items()} == {
        "weights": True,
        "scaling": True,
    }


def test_there_is_a_golden_archive_of_this_protocol():
    assert (GOLDEN / f"protocol-{PROTOCOL}").is_dir()


def test_a_newer_protocol_is_refused_with_both_numbers(path):
    reseal(path, lambda document: document.update(protocol=PROTOCOL + 7))
    with pytest.raises(FileFormatError, match=rf"protocol {PROTOCOL + 7}, .* reads up to {PROTOCOL}; upgrade"):
        read_archive(path)


def test_another_kind_is_refused_with_both_names(path):
    with pytest.raises(MismatchError, match="must be a statistics archive, not a model archive"):
        read_archive(path, kind="statistics")


def test_what_is_not_there_is_said(path, tmp_path):
    archive = read_archive(path)
    with pytest.raises(FileFormatError, match=r"has no plan\.json"):
        archive.document("plan")
    with pytest.raises(FileFormatError, match=r"has no totals\.safetensors"):
        archive.arrays("totals")
    with pytest.raises(StorageError, match="no such file"):
        read_archive(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match="not a complete streamrf archive"):
        read_archive(tmp_path)
    with pytest.raises(FileFormatError, match="not a complete streamrf archive"):
        read_archive(path / "recipe.json")


# --- what cannot be written


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": {"../evil": {}}}, "cannot name a part"),
        ({"documents": {"archive": {}}}, "cannot name a part"),
        ({"documents": {"Upper": {}}}, "cannot name a part"),
        ({"arrays": {"a/b": {}}}, "cannot name a part"),
        ({"kind": ""}, "cannot name a part"),
        ({"documents": {"m": {"loss": [1.0, float("nan")]}}}, r"m\.json\.loss\[1\] is nan"),
        ({"documents": {"m": {"a": np.zeros(2)}}}, r"m\.json\.a is a ndarray"),
        ({"documents": {"m": {1: 2}}}, "has the key 1"),
        ({"arrays": {"w": {"labels": np.array(["a"])}}}, "'labels' has type <U1"),
        ({"arrays": {"w": {"o": np.array([None])}}}, "'o' has type object"),
        ({"arrays": {"w": {"__metadata__": np.zeros(1)}}}, "cannot be the name of an array"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_leaves_nothing(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        write_archive(tmp_path / "model", **sample(**changes))
    assert os.listdir(tmp_path) == []


def test_too_deep_a_document_is_refused_both_ways():
    deep = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(InputError, match="64 levels"):
        safejson.encode(deep, "m")
    with pytest.raises(FileFormatError, match="64 levels"):
        safejson.decode(json.dumps(deep).encode(), "m")
    with pytest.raises(FileFormatError):
        safejson.decode(b"[" * 10**6, "m")


def test_numpy_scalars_and_tuples_become_json():
    value = {"a": np.float64(0.5), "b": np.int64(3), "c": (np.bool_(True), np.str_("x"))}
    assert safejson.decode(safejson.encode(value, "m"), "m") == {"a": 0.5, "b": 3, "c": [True, "x"]}


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "1e999", '{"a":1,"a":2}', "", "\ufeff{}", "9" * 10**5])
def test_loose_json_is_refused(text):
    with pytest.raises(FileFormatError, match="not valid JSON"):
        safejson.decode(text.encode(), "m")


# --- existing targets


def test_an_existing_archive_is_kept_unless_overwrite_is_said(path):
    new = sample(documents={"recipe": {"new": True}})
    with pytest.raises(ExistsError, match="already exists"):
        write_archive(path, **new)
    assert read_archive(path).documents == DOCUMENTS
    write_archive(path, **new, overwrite=True)
    assert read_archive(path).documents == {"recipe": {"new": True}}
    assert os.listdir(path.parent) == ["model"]


def test_only_an_archive_is_ever_overwritten(path, tmp_path):
    (path / "thesis.tex").write_text("three years of work")
    with pytest.raises(ExistsError, match=r"not a streamrf archive \(it holds thesis\.tex\)"):
        write_archive(path, **sample(), overwrite=True)
    (tmp_path / "file").write_text("text")
    with pytest.raises(ExistsError, match="not a directory"):
        check_target(tmp_path / "file", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.json").write_text("{}")
    with pytest.raises(ExistsError, match=r"has no archive\.json"):
        check_target(tmp_path / "other", overwrite=True)
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", overwrite=True)
    check_target(tmp_path / "new", overwrite=False)


def test_a_failed_overwrite_leaves_the_old_archive(path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("streamrf.support.storage.archive.write_tensors", fail)
    with pytest.raises(StorageError, match=r"Could not write .*free there\): no space is left"):
        write_archive(path, **sample(), overwrite=True)
    assert same(read_archive(path).arrays("weights"), sample_arrays())
    assert os.listdir(path.parent) == ["model"]


# --- damage


def outcome(path):
    """What reading everything gives, or FileFormatError; any other exception fails the test."""
    try:
        archive = read_archive(path, kind="model")
        return archive.documents, archive.arrays("weights")
    except FileFormatError:
        return None


def assert_intact_or_refused(path):
    result = outcome(path)
    if result is not None:
        assert result[0] == DOCUMENTS
        assert same(result[1], sample_arrays())


MEMBERS = ["archive.json", "recipe.json", "metrics.json", "weights.safetensors"]


@pytest.mark.parametrize("name", MEMBERS)
def test_a_flipped_bit_anywhere_is_found(path, name):
    data = (path / name).read_bytes()
    for position in range(0, len(data), max(1, len(data) // 80)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        (path / name).write_bytes(damaged)
        assert_intact_or_refused(path)
        if name != "archive.json":  # there, white space does not count
            assert outcome(path) is None


@pytest.mark.parametrize("name", MEMBERS)
def test_a_truncated_or_longer_file_is_found_and_named(path, name):
    data = (path / name).read_bytes()
    for size in {0, 1, 7, 8, 9, 50, len(data) // 2, len(data) - 2}:
        (path / name).write_bytes(data[:size])
        with pytest.raises(FileFormatError, match=name.replace(".", r"\.")):
            read_archive(path).arrays("weights")
    (path / name).write_bytes(data + b"x")
    with pytest.raises(FileFormatError, match=name.replace(".", r"\.")):
        read_archive(path).arrays("weights")


def test_the_message_gives_both_sizes_and_both_digests(path):
    data = (path / "weights.safetensors").read_bytes()
    (path / "weights.safetensors").write_bytes(data[:-1])
    with pytest.raises(FileFormatError, match=rf"has {len(data) - 1} bytes and should have {len(data)}"):
        read_archive(path)
    (path / "weights.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FileFormatError, match=r"SHA-256 [0-9a-f]{64} and should have [0-9a-f]{64}"):
        read_archive(path).arrays("weights")


def test_swapped_and_missing_files_are_found(path):
    shutil.copy(path / "recipe.json", path / "metrics.json")
    assert outcome(path) is None
    os.remove(path / "metrics.json")
    with pytest.raises(FileFormatError, match=r"it has no metrics\.json"):
        read_archive(path)


@pytest.mark.parametrize("name", ["../outside.json", "/etc/passwd", "a/b.json", "..json", "archive.json", "x.pkl"])
def test_a_manifest_cannot_name_files_outside(path, name):
    (path.parent / "outside.json").write_text("{}")
    record = {"bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}
    reseal(path, lambda document: document["files"].update({name: record}))
    with pytest.raises(FileFormatError, match="which is not a valid entry"):
        read_archive(path)


def test_a_link_out_of_the_archive_is_not_followed(path):
    data = (path / "recipe.json").read_bytes()
    (path.parent / "outside.json").write_bytes(data)
    os.remove(path / "recipe.json")
    os.symlink(path.parent / "outside.json", path / "recipe.json")
    with pytest.raises(FileFormatError, match="not a plain file inside"):
        read_archive(path)


def test_a_link_to_a_whole_archive_is_fine_and_a_pipe_is_not(path):
    os.symlink(path, path.parent / "link")
    assert read_archive(path.parent / "link").documents == DOCUMENTS
    os.remove(path / "recipe.json")
    os.mkfifo(path / "recipe.json")
    with pytest.raises(FileFormatError, match="not a plain file"):
        read_archive(path)


SENSELESS = """
    {"files":null} {"files":{"a.json":null}} {"files":{"a.json":{"bytes":-1,"sha256":"%064d"}}} {"kind":3}
    {"files":{"a.json":{"bytes":1,"sha256":"no"}}} {"format":"zip"} {"protocol":0} {"protocol":"1"}
"""


@pytest.mark.parametrize("change", [json.loads(text) for text in (SENSELESS % 0).split()])
def test_a_sealed_but_senseless_manifest_is_refused(path, change):
    reseal(path, lambda document: document.update(change))
    with pytest.raises(FileFormatError):
        read_archive(path)


# --- array files that lie, with every digest right


def lying_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype="F64", shape=(2,), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


LIES = {
    "header longer than the file": (2**40).to_bytes(8, "little") + b"{}",
    "header beyond all bounds": (2**63 - 1).to_bytes(8, "little"),
    "no header": b"abc",
    "header is a list": lying_file([]),
    "header is not JSON": lying_file(b"\xff\xfe"),
    "entry is a number": lying_file({"a": 3}),
    "shape missing": lying_file({"a": {"dtype": "F64", "data_offsets": [0, 0]}}),
    "huge shape": lying_file({"a": entry(shape=[2**40], offsets=[0, 2**43])}),
    "shape larger than its place": lying_file({"a": entry(shape=[2**33])}, bytes(16)),
    "shape smaller than its place": lying_file({"a": entry(shape=[1])}, bytes(16)),
    "overflowing shape": lying_file({"a": entry(shape=[2**32, 2**32], offsets=[0, 0])}),
    "empty but impossible shape": lying_file({"a": entry(shape=[0, 2**62, 2**62], offsets=[0, 0])}),
    "shape of many sides": lying_file({"a": entry(shape=[1] * 70, offsets=[0, 8])}, bytes(8)),
    "negative side": lying_file({"a": entry(shape=[-2], offsets=[0, 16])}, bytes(16)),
    "fractional side": lying_file({"a": entry(shape=[2.0])}, bytes(16)),
    "boolean side": lying_file({"a": entry(shape=[True], offsets=[0, 8])}, bytes(8)),
    "offsets backwards": lying_file({"a": entry(offsets=[16, 0])}, bytes(16)),
    "three offsets": lying_file({"a": entry(offsets=[0, 16, 32])}, bytes(32)),
    "beyond the end": lying_file({"a": entry()}, bytes(8)),
    "bytes left over": lying_file({"a": entry()}, bytes(24)),
    "overlap": lying_file({"a": entry(), "b": entry(offsets=[8, 24])}, bytes(24)),
    "gap": lying_file({"a": entry(), "b": entry(offsets=[24, 40])}, bytes(40)),
    "unknown type": lying_file({"a": entry(dtype="BF16", shape=[8])}, bytes(16)),
    "type is a list": lying_file({"a": entry(dtype=["F64"])}, bytes(16)),
    "object type": lying_file({"a": entry(dtype="O")}, bytes(16)),
    "not a boolean": lying_file({"a": entry(dtype="BOOL", shape=[2], offsets=[0, 2])}, b"\x01\x02"),
    "twice the same name": lying_file(b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2), bytes(16)),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_array_file_is_refused_before_memory_is_taken(path, lie):
    relist(path, "weights.safetensors", LIES[lie])

    def read():
        with pytest.raises(FileFormatError, match=r"weights\.safetensors"):
            read_archive(path).arrays("weights")

    assert traced_peak(read) < 2**20


@pytest.mark.parametrize("lie", ["overlap", "gap"])
def test_arrays_must_lie_end_to_end(lie):
    """Without a digest to help: both files would otherwise be read as something."""
    with pytest.raises(FileFormatError, match="starts at byte"):
        from_bytes(LIES[lie])


def test_the_header_bound_holds_even_for_a_large_file(tmp_path):
    with open(tmp_path / "sparse", "wb") as stream:
        stream.write((2**33).to_bytes(8, "little"))
        stream.truncate(2**34)

    def read():
        with open(tmp_path / "sparse", "rb") as stream, pytest.raises(FileFormatError, match=str(MAX_HEADER_BYTES)):
            read_tensors(HashingReader(stream, "sparse"), 2**34)

    assert traced_peak(read) < 2**20


@given(st.data())
@settings(max_examples=300)
def test_any_bytes_give_arrays_or_a_format_error(data):
    """Without a digest to help: headers cut, spliced and altered at random."""
    whole = to_bytes({"a": np.arange(6.0).reshape(2, 3), "b": np.array([True, False])})
    cut = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 12))
    mutated = whole[:cut] + data.draw(st.binary(max_size=12)) + whole[cut + length :]
    try:
        arrays = from_bytes(mutated)
    except FileFormatError:
        return
    assert sum(array.nbytes for array in arrays.values()) <= len(mutated)


# --- atomic files and directories


def test_atomic_write_is_all_or_nothing(tmp_path):
    target = tmp_path / "deep" / "file"
    files.atomic_write(target, b"old")

    def interrupted(stream):
        stream.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.atomic_write(target, interrupted)
    assert target.read_bytes() == b"old"
    files.atomic_write(target, lambda stream: stream.write(b"new"))
    assert target.read_bytes() == b"new"
    with pytest.raises(ExistsError):
        files.atomic_write(target, b"newer", overwrite=False)
    assert os.listdir(target.parent) == ["file"]


def test_atomic_write_follows_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    os.symlink(tmp_path / "real", tmp_path / "link")
    files.atomic_write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_directory_is_replaced_whole(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(files, "exchange", lambda *_: False)
    for text in ("first", "second"):
        make_directory(tmp_path / "d", text, overwrite=True)
        assert (tmp_path / "d" / "x").read_text() == text
        assert os.listdir(tmp_path) == ["d"]


def make_directory(path, text, then=lambda: None, **options):
    with files.atomic_directory(path, **options) as directory:
        (directory / "x").write_text(text)
        then()


def test_a_directory_that_failed_leaves_the_old_one(tmp_path):
    make_directory(tmp_path / "d", "second")
    with pytest.raises(ZeroDivisionError):
        make_directory(tmp_path / "d", "third", then=lambda: 1 / 0, overwrite=True)
    assert (tmp_path / "d" / "x").read_text() == "second"
    assert os.listdir(tmp_path) == ["d"]


def test_a_target_made_meanwhile_is_not_overwritten(tmp_path):
    def somebody_else():
        make_directory(tmp_path / "d", "keep")

    with pytest.raises(ExistsError):
        make_directory(tmp_path / "d", "lost", then=somebody_else)
    assert os.listdir(tmp_path) == ["d"]
    assert (tmp_path / "d" / "x").read_text() == "keep"


CRASH = """
import os, sys
from streamrf.support.storage import files
if sys.argv[2] == "no-exchange":
    files.exchange = lambda *_: False
rename = os.rename
def rename_and_die(*names):
    rename(*names)
    os._exit(9)
if sys.argv[2] == "no-exchange":
    os.rename = rename_and_die
with files.atomic_directory(sys.argv[1], overwrite=True) as directory:
    (directory / "x").write_text("new")
    if sys.argv[2] == "in-block":
        os._exit(9)
"""


@pytest.mark.parametrize("moment", ["in-block", "no-exchange"])
def test_what_a_crash_leaves_is_settled_by_the_next_writer(tmp_path, moment):
    make_directory(tmp_path / "d", "old")
    assert subprocess.run([sys.executable, "-c", CRASH, tmp_path / "d", moment]).returncode == 9
    assert len(os.listdir(tmp_path)) == 2  # the new one half made, and the old one in place or aside
    assert (tmp_path / "d").exists() == (moment == "in-block")
    files.clean_leftovers(tmp_path)
    assert (tmp_path / "d" / "x").read_text() == "old"
    assert os.listdir(tmp_path) == ["d"]


def test_the_leftovers_of_the_living_and_of_other_hosts_are_left_alone(tmp_path):
    mine = files._temporary(tmp_path / "d", "tmp")
    elsewhere = tmp_path / ".d.streamrf-00000000-1-1-00000000.tmp"
    dead = Path(str(mine).replace(f"-{os.getpid()}-", "-4194303999-"))
    reused = Path(str(mine).replace(f"-{int(files._started(os.getpid()))}-", "-1000000000-"))
    strange = tmp_path / ".d.streamrf-notours.tmp"
    for leftover in (mine, elsewhere, dead, reused, strange):
        leftover.write_text("x")
    files.clean_leftovers(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, elsewhere, strange])


def test_a_full_disk_gets_a_sentence_and_leaves_nothing(tmp_path):
    """A limit on file size stands in for a full disk: the write truly fails half way."""
    code = (
        "import resource, sys; from streamrf.support.storage import files\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: files.atomic_write(sys.argv[1], bytes(1_000_000))\n"
        "except files.StorageError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "f"], capture_output=True, text=True)
    assert "Could not write" in done.stdout
    assert "1.00 MB in all" in done.stdout
    assert os.listdir(tmp_path) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100_000


def test_other_storage_errors_get_a_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="Could not write"):
        files.atomic_write(tmp_path / "file" / "below", b"x")
    with pytest.raises(StorageError, match="permission denied"), files.storage_errors("write x", tmp_path):
        raise PermissionError(13, "Permission denied")
    with pytest.raises(StorageError, match="name too long"):
        files.atomic_write(tmp_path / ("n" * 300), b"x")


def test_free_space_is_checked_with_both_numbers(tmp_path):
    files.check_free_space(tmp_path / "not" / "yet", 1)
    with pytest.raises(StorageError, match=r"needs 1,000 PB and .* are free"):
        files.check_free_space(tmp_path, 10**18)
