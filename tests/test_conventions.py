"""What people expect of any command: version, help with examples, completion, exit codes, no colour when asked."""

import inspect
import os
import re
import shlex
import subprocess

import click
import pyarrow
import pyarrow.parquet
import pytest
from commands import PROJECT, run_alone, streamrf
from documents import make_programs

from streamrf import __version__
from streamrf.cli import cli, main
from streamrf.support import errors
from streamrf.support.progress import Interrupted

CONTEXT = click.Context(cli, info_name="streamrf")
COMMANDS = {name: cli.get_command(CONTEXT, name) for name in cli.list_commands(CONTEXT)}
ERRORS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.StreamRFError)]


def test_version():
    assert streamrf("--version").out.split() == ["streamrf,", "version", __version__]


def examples(name):
    """The lines under Examples in a command's help, continued ones joined."""
    text = inspect.cleandoc(COMMANDS[name].help or "")
    assert "Examples:" in text, f"`streamrf {name} --help` shows no example"
    block = text.split("Examples:\n", 1)[1].split("\n\n")[0].replace("\\\n", " ")
    return [line.strip() for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_that_parse(name):
    found = examples(name)
    assert found
    for line in found:
        words = next(part for part in line.split(" | ") if " streamrf " in f" {part}")
        words = shlex.split(words.split(" < ")[0].split(" > ")[0], comments=True)
        words = words[words.index("streamrf") :]
        if "--config" not in words:  # a file that is not there
            COMMANDS[words[1]].make_context(words[1], words[2:], parent=CONTEXT)
    assert any(f"streamrf {name} " in f"{line} " for line in found)


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_is_short_lines_without_colour(name):
    answer = streamrf(*([name] if name else []), "--help")
    assert answer.code == 0
    assert answer.out.startswith("Usage: streamrf")
    assert "\x1b" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 120


def test_help_of_many_options_shows_the_common_ones_first():
    short, whole = streamrf("train", "--help").out, streamrf("train", "--help-all").out
    common, more = short.split("Common options:\n")[1].split("More options:\n")
    assert len(re.findall(r"^  -", common, re.MULTILINE)) == 11  # ten and --help-all
    assert common.index("--target ") < common.index("--out ") < common.index("--D ")
    assert re.findall(r"^  (\w+) ", more, re.MULTILINE) == ["data", "columns", "model", "solver", "run", "cluster"]
    flags = {each.opts[0] for each in COMMANDS["train"].params if isinstance(each, click.Option)}
    assert flags == set(re.findall(r"--[\w-]+", f"{common} {more}".replace("--help-all", ""))) & flags
    groups = re.split(r"^Options: (\w+):$", whole, flags=re.MULTILINE)
    assert groups[1::2] == ["data", "columns", "model", "solver", "run", "cluster"]
    assert all(re.search(rf"^  (-\w, )?{flag}\b", whole, re.MULTILINE) for flag in flags)


@pytest.mark.parametrize(
    ("words", "meant"), [(("trian",), "Did you mean train?"), (("train", "x", "--exlude", "a"), "--exclude")]
)
def test_slips_are_answered_with_what_was_meant(words, meant):
    assert meant in streamrf(*words).sentence
    assert "Did you mean" not in streamrf("xyzzy").sentence


# -- exit codes


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_ends_with_its_code_and_one_sentence(kind, monkeypatch, capsys):
    def fail(**_):
        raise kind("this is what happened")

    monkeypatch.setattr(COMMANDS["plan"], "callback", fail)
    with pytest.raises(SystemExit) as end:
        main(["plan", "data.zarr"])
    assert end.value.code == kind.exit_code
    assert capsys.readouterr().err == "streamrf: this is what happened\n"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (Interrupted("stopped: 5 rows"), 130, "stopped: 5 rows"),
        (KeyboardInterrupt(), 130, "stopped"),
        (MemoryError("12 GB"), 6, "set a budget with --memory"),
        (PermissionError(13, "Permission denied", "x.zarr"), 8, "Permission denied: x.zarr"),
    ],
)
def test_errors_of_python_have_codes_too(error, code, words, monkeypatch, capsys):
    def fail(**_):
        raise error

    monkeypatch.setattr(COMMANDS["plan"], "callback", fail)
    with pytest.raises(SystemExit) as end:
        main(["plan", "data.zarr"])
    assert end.value.code == code
    assert words in capsys.readouterr().err


def test_codes_differ_and_have_room():
    codes = [kind.exit_code for kind in ERRORS]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 126 for code in codes)  # from 126 on, shells have meanings of their own


@pytest.mark.parametrize("words", [("trian",), ("train", "--DD", "5"), ("train",), ("plan", "x", "--D", "many")])
def test_slips_are_one_sentence_and_code_2(words):
    answer = streamrf(*words)
    assert answer.code == 2
    assert "--help'" in answer.sentence


# -- completion


def complete(shell, *words):
    environment = {
        "_STREAMRF_COMPLETE": f"{shell}_complete", "COMP_WORDS": " ".join(("streamrf", *words)),
        "COMP_CWORD": words[-1] if shell == "fish" else str(len(words)),
    }  # fmt: skip
    return run_alone(**environment).out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_options(shell):
    assert "train" in complete(shell, "tra")
    assert "predict" not in complete(shell, "tra")
    assert "--length-scale" in complete(shell, "train", "--len")
    source = run_alone(_STREAMRF_COMPLETE=f"{shell}_source")
    assert source.code == 0
    assert "_STREAMRF_COMPLETE" in source.out


def test_completion_knows_values_files_and_columns(tmp_path):
    (tmp_path / "t.csv").write_text('\ufeffprice;"floor area";first\n1;2;3\n')
    pyarrow.parquet.write_table(pyarrow.table({"price": [1], "place": [2], "area": [3]}), tmp_path / "t.parquet")
    assert complete("bash", "train", "--loss", "log").split() == ["plain,logistic"]
    assert complete("bash", "train", "--kernel", "matern5").split() == ["plain,matern52"]
    assert complete("bash", "train", "--threshold", "f").split() == ["plain,f1"]
    assert complete("bash", "train", "t").split() == ["file,t"]
    assert complete("bash", "train", f"{tmp_path}/t.parquet", "--target", "p").split() == ["plain,price", "plain,place"]
    assert complete("bash", "train", f"{tmp_path}/t.parquet", "--exclude", "price,a").split() == ["plain,price,area"]
    assert complete("bash", "train", f"{tmp_path}/t.csv", "--target", "f").splitlines() == [
        "plain,floor area", "plain,first",
    ]  # fmt: skip
    for other in ("none.parquet", "data.zarr"):
        assert complete("bash", "train", other, "--target", "p").strip() == ""


def test_completion_in_a_real_shell(tmp_path):
    make_programs(tmp_path / "bin")
    script = (
        'eval "$(_STREAMRF_COMPLETE=bash_source streamrf)"; COMP_WORDS=(streamrf tra); COMP_CWORD=1;'
        ' _streamrf_completion streamrf; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["train"]


def test_the_page_on_conventions_names_what_there_is():
    page = (PROJECT / "docs" / "conventions.md").read_text(encoding="utf-8")
    for word in ("_STREAMRF_COMPLETE", "streamrf.toml", "--save-config", "NO_COLOR", "logging", "cli.md#exit-codes"):
        assert word in page
    assert not re.search(r"exit code \d\d", page)  # the table is elsewhere, made from the code
