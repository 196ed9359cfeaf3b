"""`scripts/quickstart` itself, at toy size, with this environment standing in for the one it would make."""

import os
import subprocess
import sys

import pytest
from commands import PROJECT


@pytest.fixture
def environment(tmp_path):
    """A folder that the script takes for a finished virtual environment: its programs are those of this one."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name, command in (("python", ""), ("streamrf", "-m streamrf")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        (programs / name).chmod(0o755)
    checksum = subprocess.check_output(["cksum"], input=(PROJECT / "pyproject.toml").read_bytes()).split()[0].decode()
    (tmp_path / "venv" / f"streamrf-plot-{checksum}").touch()
    return {
        "STREAMRF_VENV": str(tmp_path / "venv"), "FOLDER": str(tmp_path / "toy"), "ROWS": "4000", "TEST_ROWS": "500",
        "FEATURES": "40", "PYTHONPATH": str(PROJECT),
    }  # fmt: skip


def test_quickstart(environment, tmp_path):
    pytest.importorskip("matplotlib")
    done = subprocess.run(
        [PROJECT / "scripts" / "quickstart"], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "installing" not in done.stdout
    for words in ("4,000 rows of 20 inputs", "memory, projected", "hold-out rmse", "r2", "500 rows to", "RMSE"):
        assert words in done.stdout, words
    made = {path.name for path in (tmp_path / "toy").iterdir()}
    assert made == {"train.zarr", "test.zarr", "quickstart.model", "predictions.parquet", "quickstart.png"}
    assert (tmp_path / "toy" / "quickstart.png").read_bytes().startswith(b"\x89PNG")


def test_every_step_that_writes_may_write_again():
    text = (PROJECT / "scripts" / "quickstart").read_text()
    writing = [line for line in text.splitlines() if line.startswith(("streamrf train", "streamrf predict"))]
    assert len(writing) == 2
    assert all("--overwrite" in line for line in writing)
