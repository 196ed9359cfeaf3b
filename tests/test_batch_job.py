"""The batch script of docs/clusters.md, run as SLURM would run it: its processes on this machine, and TERM in time."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cluster_tools import wait_until
from commands import PROJECT
from documents import blocks
from tables import smooth, write_zarr

from streamrf.cli import main
from streamrf.models.model import Model

OPTIONS = "--D 48 --pilot none --kernel gaussian --length-scale 2 --bits 8 --lambda 1e-4 --checkpoint-every 0s"
SHIMS = {  # what the script calls; a run that is stopped waits after its first save until it is told to go on
    "dask": f'exec {sys.executable} -m dask "$@"',
    "srun": 'exec "$@"',
    "streamrf": f'exec {sys.executable} -m streamrf "$@"',
    "held": f'shift; exec {sys.executable} -m tests.interruptions held "$HELD" train "$@"',
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table, and commands by the names that the script knows them by."""
    write_zarr(tmp_path / "data.zarr", *smooth(6000), chunk=100)
    (tmp_path / "bin").mkdir()
    for name, text in SHIMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def script(folder: Path) -> str:
    """The recipe as the page has it, with what belongs to a real site replaced."""
    page = PROJECT / "docs" / "clusters.md"
    (text,) = (block.text for block in blocks(page) if "#SBATCH --signal" in block.text)
    text = text.replace("source /shared/venv/bin/activate", f"PATH={shlex.quote(str(folder / 'bin'))}:$PATH")
    text = text.replace("/shared/", f"{folder}/").replace("54GB", "2GB").replace("--memory 8GB", "--memory 2GB")
    return text.replace("--D 20000", OPTIONS)


@contextmanager
def submitted(folder: Path, text: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """The job, in a session of its own; at its end the batch system ends what it has left running."""
    settings = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "1", "PYTHONPATH": f"{PROJECT}:{PROJECT / 'tests'}"}
    (folder / "scheduler-7.json").unlink(missing_ok=True)
    with open(folder / "out.log", "a") as log:
        job = subprocess.Popen(
            ["bash", "-c", text], cwd=PROJECT, env={**os.environ, **settings, **environment}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield job
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def test_a_job_saves_at_its_time_limit_and_the_next_one_has_the_bits_of_a_run_that_was_never_stopped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = script(folder).replace("streamrf train", "held train")
    with submitted(folder, first, HELD=str(folder)) as stopped:
        wait_until(lambda: (folder / "held").exists() or stopped.poll() is not None)
        stopped.send_signal(signal.SIGTERM)  # to the script alone, as --signal=B:TERM@120 has it
        (folder / "go").touch()
        assert stopped.wait(120) == 130, (folder / "out.log").read_text()
    assert "rows are done and kept in" in (folder / "out.log").read_text()
    assert not (folder / "data.model").exists()

    with submitted(folder, script(folder).replace(OPTIONS, f"{OPTIONS} --resume")) as resumed:
        assert resumed.wait(300) == 0, (folder / "out.log").read_text()
    main(["train", str(folder / "data.zarr"), *OPTIONS.split(), "--out", str(folder / "alone.model"), "--json"])
    alone = json.loads(capsys.readouterr().out)["statistics_digest"]
    assert Model.load(folder / "data.model").metadata["statistics_digest"] == alone


def test_a_job_ends_where_its_scheduler_does_not_start(folder: Path) -> None:
    (folder / "bin" / "dask").write_text("#!/bin/bash\nexit 1\n")
    with submitted(folder, script(folder)) as job:
        assert job.wait(60) == 1
    assert "the scheduler did not start" in (folder / "out.log").read_text()
