"""The peers' own environment, made once: a virtual environment with what peers.txt asks for."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import venv
from pathlib import Path

import click

from benchlib.context import Context

REQUIREMENTS = Path(__file__).with_name("peers.txt")
SHOWN = ("numpy", "scikit-learn", "scikit-learn-intelex", "dask", "dask-ml", "lightgbm", "xgboost", "zarr")


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def make(context: Context) -> Path:
    """The peers' Python; it is made and filled if it is not there (a minute or two)."""
    if context.peers_python:
        return context.peers_python
    folder = context.work / "peers"
    stamp = folder / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    if not stamp.exists():
        click.echo("making the peers' environment: a minute or two")
        venv.create(folder, with_pip=True)
        command = [python_of(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "-r", REQUIREMENTS], check=True)
        stamp.touch()
    return python_of(folder)


def find(context: Context) -> Path | None:
    """The peers' Python for toy sizes: nothing is installed for these, and what is missing is left out."""
    if not context.quick:
        return make(context)
    return context.peers_python or Path(sys.executable)


def versions(python: Path) -> dict[str, str]:
    """Versions of what is installed there."""
    code = (
        "import importlib.metadata as m, json\n"
        f"print(json.dumps({{d.metadata['Name'].lower(): d.version for d in m.distributions()"
        f" if d.metadata['Name'].lower() in {SHOWN!r}}}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(sorted(json.loads(done.stdout).items()))
