"""Errors: one message for Python and the command line, each in its own spelling of settings."""

import ast
import re

import numpy as np
import pytest
import zarr
from commands import FAST, PROJECT, done, streamrf

import streamrf as package
from streamrf.recipe import Recipe
from streamrf.support.errors import InputError, StreamRFError
from streamrf.support.settings import about, with_flags

FLAG = re.compile(r"(?<![\w-])--[A-Za-z]")
SETTING = re.compile(r"`\w+(=[^`]*)?`")

# Files outside the command line that may spell flags, and why.
MAY = {
    "support/settings.py": "makes the flags",
    "reports/page.py": "its style sheet has variables, such as --ink",
}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`length_scale` must be positive, not -1", "--length-scale must be positive, not -1"),
        ("replace it with `overwrite=True`", "replace it with --overwrite"),
        ("name columns with `header=False`", "name columns with --no-header"),
        ("drop them with `nan='drop'` or lower `D`", "drop them with --nan drop or lower --D"),
        ("a larger `ridge`, such as `ridge=1e-06`", "a larger --lambda, such as --lambda 1e-06"),
        ("`shards=3`: must be 2", "--parts 3: must be 2"),
        ("leave out `exclude=['listing id', 'b']`", "leave out --exclude 'listing id,b'"),
        ("`kernel='bins:2'` and `x=Anything()`", "--kernel bins:2 and --x Anything()"),
        ("run `streamrf solve` on it; ``two`` stay", "run `streamrf solve` on it; ``two`` stay"),
    ],
)
def test_settings_become_flags_on_the_command_line(message, shown):
    assert with_flags(message) == shown


def test_a_command_has_flags_of_its_own():
    assert with_flags("`form='csv'`, `nan`", {"form": "--from"}) == "--from csv, --nan"


def test_the_command_line_prints_flags(monkeypatch):
    def refuse(*_, **__):
        raise InputError("`checkpoint_every` must be positive")

    monkeypatch.setattr("streamrf.support.memory.limit_heaps", refuse)
    answer = streamrf("inspect", "nothing")
    assert (answer.code, answer.err) == (2, "streamrf: --checkpoint-every must be positive\n")


def _spelled_flags(module):
    """The literals of a module that spell a flag, those that a value continues included."""
    tree = ast.parse(module)
    pieces = [piece for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values[:-1]]
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if FLAG.search(text) or (node in pieces and text.endswith("--")):
            yield f"{node.lineno}: {text}"


def test_the_check_below_finds_flags():
    assert (
        len(list(_spelled_flags('a = "lower --D"\nb = f"--{a}"\nc = f"{a} (--lambda {a})"\nd = "a -- b", "--"'))) == 3
    )


def test_only_the_command_line_spells_flags():
    """Messages, notes, help texts and docstrings name settings as Python does; the command line translates."""
    root = PROJECT / "streamrf"
    found = {str(path.relative_to(root)): list(_spelled_flags(path.read_text())) for path in root.rglob("*.py")}
    spelled = {name for name, literals in found.items() if literals and not name.startswith("cli/")}
    assert spelled == set(MAY), {name: found[name] for name in spelled - set(MAY)}


# -- the same slips in both worlds


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slips")
    rng = np.random.default_rng(0)
    store = zarr.open_group(folder / "t.zarr", mode="w")
    store["X"], store["y"] = rng.normal(size=(60, 3)), rng.normal(size=60)
    store["gaps"] = np.where(np.arange(180).reshape(60, 3) == 5, np.nan, 1.0)
    done("train", folder / "t.zarr", *FAST, "--out", folder / "t.model")
    return folder


def python(table, opening=(), **settings):
    package.train(table / "t.zarr", Recipe(**settings), **dict(opening))


SLIPS = {
    "a value out of range": (lambda t: python(t, ridge=-1.0), ["--lambda=-1"]),
    "a setting of another solver": (lambda t: python(t, shards=3), ["--parts", "3"]),
    "settings that do not go together": (lambda t: python(t, cv=3, solver="cg"), ["--cv", "3", "--solver", "cg"]),
    "no such array": (lambda t: python(t, {"y": "z"}), ["--y", "z"]),
    "NaN": (lambda t: python(t, {"x": "gaps"}), ["--x", "gaps"]),
    "too little memory": (
        lambda t: package.train(t / "t.zarr", settings=package.Settings(memory=10**6)), ["--memory", "1MB"],
    ),
    "labels that are wanted": (lambda t: python(t, task="classification", loss="huber"),
                               ["--task", "classification", "--loss", "huber"]),
    "a label that is none": (lambda t: python(t, class_weight="balanced"), ["--class-weight", "balanced"]),
}  # fmt: skip


@pytest.mark.parametrize("slip", SLIPS)
def test_each_world_has_its_spelling(slip, table):
    in_python, options = SLIPS[slip]
    with pytest.raises(StreamRFError) as caught:
        in_python(table)
    message = str(caught.value)
    assert SETTING.search(message), message
    assert not FLAG.search(message), message
    answer = streamrf("train", table / "t.zarr", *options, "--out", table / "other.model", "--quiet")
    assert answer.code == caught.value.exit_code
    assert FLAG.search(answer.sentence), answer.sentence
    assert "`" not in answer.sentence


def test_the_output_exists_in_both_worlds(table):
    with pytest.raises(StreamRFError, match="`overwrite=True`"):
        package.Model.load(table / "t.model").save(table / "t.model")
    assert "replace it with --overwrite" in streamrf("train", table / "t.zarr", "--out", table / "t.model").sentence


def test_a_conversion_asks_for_the_flag_that_it_has(table):
    (table / "unknown").write_text("what is this?\n")
    assert "name it with --from" in streamrf("convert", table / "unknown", table / "o.zarr").sentence


def test_a_reason_that_is_kept_has_flags_too(table):
    sizes = ("--D", "20", "--seeds", "1", "--rows", "20", "--bits", "float64", "--quiet")
    for form in ([], ["--json"]):
        answer = done("compare", table / "t.zarr", "--maps", "mc,sorf", *sizes, *form)
        assert "use --bits 7, 8, 12 or float32" in answer.out


@pytest.mark.parametrize("command", ["train", "plan", "prepare", "convert"])
def test_help_has_flags_and_no_settings_of_python(command):
    assert "`" not in done(command, "--help").out


def test_estimators_document_settings_of_python():
    text = package.KernelRegressor.__doc__
    assert "``map='binning'``: number of random grids" in text
    assert not FLAG.search(text)


def test_every_setting_that_a_help_text_names_is_one():
    fields = Recipe.__dataclass_fields__
    named = {found[1] for each in fields.values() for found in re.finditer(r"`(\w+)(?:=[^`]*)?`", about(each).help)}
    assert named
    assert named <= set(fields)
