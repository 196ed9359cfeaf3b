"""Settings in files: what is read, what wins, what is refused, and that a saved file runs the same run again."""

import tomllib
from pathlib import Path

import pytest
from commands import FAST, done, streamrf
from tables import smooth, write_zarr

from streamrf.cli.config import to_toml
from streamrf.support import errors


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_zarr(tmp_path / "rows.zarr", *smooth(700))


def train(*more):
    return done("train", *more, "--json").json


def test_a_saved_file_gives_the_same_bits(data):
    first = train(
        data, "--D", "40", "--bits", "8", "--kernel", "gaussian", "--threads", "1", "--save-config", "run.toml"
    )
    again = train("--config", "run.toml", "--out", "again.model")
    assert again["statistics_digest"] == first["statistics_digest"]
    assert again["chosen"] == first["chosen"]
    assert again["holdout"] == first["holdout"]
    settings = tomllib.loads(Path("run.toml").read_text())["train"]
    assert settings["data"] == [data]
    assert settings["length-scale"] == first["chosen"]["length_scale"]
    assert settings["lambda"] == first["chosen"]["ridge"]
    assert "json" not in settings


def test_a_saved_file_has_one_width(data):
    """--gamma is another way of saying --length-scale, and both at once are refused."""
    first = train(data, *FAST[:4], "--kernel", "gaussian", "--gamma", "0.125", "--save-config", "run.toml")
    settings = tomllib.loads(Path("run.toml").read_text())["train"]
    assert settings["length-scale"] == first["chosen"]["length_scale"] == 2.0
    assert "gamma" not in settings
    again = train("--config", "run.toml", "--out", "again.model")
    assert again["statistics_digest"] == first["statistics_digest"]


def test_the_command_line_wins(data):
    Path("run.toml").write_text(to_toml("train", {"data": [data], "D": 20, "pilot": "none", "length-scale": 2.0}))
    assert train("--config", "run.toml", "--out", "a.model")["D"] == 20
    assert train("--config", "run.toml", "--D", "30", "--out", "b.model")["D"] == 30


def test_a_file_of_the_usual_name_is_found(data):
    Path("streamrf.toml").write_text('[train]\npilot = "none"\nlength_scale = 2.0\nD = 24\n[predict]\nproba = true\n')
    answer = done("train", data, "--out", "a.model", "--quiet", "--json")
    assert answer.json["D"] == 24
    assert answer.json["chosen"]["length_scale"] == 2.0
    assert answer.err == "settings from streamrf.toml\n"
    assert streamrf("inspect", data).code == 0  # a file without a table for the command is not in its way
    plain = train(data, *FAST, "--config", "none", "--out", "b.model")
    assert plain["D"] == 32


def test_every_kind_of_value_survives():
    settings = {"data": ["a b.zarr", 'quote"d', "back\\slash", "ü"], "D": 5, "lambda": 1e-07, "overwrite": True}
    assert tomllib.loads(to_toml("train", settings)) == {"train": settings}
    assert to_toml("train", {"memory": None}) == "[train]\n"


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("[train]\nDD = 5", errors.InputError, "'DD' is not a setting of `streamrf train`"),
        ("[train\n", errors.InputError, "is not a TOML file"),
        ("[plan]\nD = 5", errors.InputError, "has no table [train]; it has plan"),
        ("[train]\nconfig = 'x'", errors.InputError, "'config' is not a setting"),
        (None, errors.StorageError, "cannot be read"),
    ],
)
def test_what_cannot_be_right_is_refused(data, text, error, words):
    if text is not None:
        Path("run.toml").write_text(text)
    answer = streamrf("train", data, *FAST, "--config", "run.toml")
    assert answer.code == error.exit_code
    assert words in answer.sentence


def test_a_wrong_value_is_refused_like_one_on_the_command_line(data):
    Path("run.toml").write_text('[train]\nD = "many"')
    answer = streamrf("train", data, "--config", "run.toml")
    assert answer.code == 2
    assert "many" in answer.sentence


def test_a_file_is_never_replaced(data):
    Path("run.toml").write_text("mine")
    answer = streamrf("train", data, *FAST, "--save-config", "run.toml")
    assert answer.code == errors.ExistsError.exit_code
    assert Path("run.toml").read_text() == "mine"


def test_other_commands_have_files_too(data):
    done("train", data, *FAST, "--out", "a.model", "--quiet")
    done("evaluate", "a.model", data, "--threads", "1", "--quiet", "--save-config", "e.toml")
    assert tomllib.loads(Path("e.toml").read_text()) == {"evaluate": {"model": "a.model", "data": [data], "threads": 1}}
    assert done("evaluate", "--config", "e.toml", "--json").json == done("evaluate", "a.model", data, "--json").json


def test_train_draws_a_report(data):
    told = train(data, *FAST, "--out", "a.model", "--report")
    assert told["report"] == "a.model.html"
    assert "<svg" in Path("a.model.html").read_text()
    again = streamrf("train", data, *FAST, "--out", "b.model", "--report", "a.model.html")
    assert again.code == errors.ExistsError.exit_code  # before the run, not after it
    assert train(data, *FAST, "--out", "b.model", "--report", "named.html")["report"] == "named.html"
    assert train(data, *FAST, "--out", "c.model")["report"] is None
