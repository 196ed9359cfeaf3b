"""The peers' own environment, made once: a virtual environment with what peers.txt asks for."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import venv
from pathlib import Path

from benchlib.context import Context

REQUIREMENTS = Path(__file__).with_name("peers.txt")
SHOWN = ("numpy", "scikit-learn", "scikit-learn-intelex", "dask", "dask-ml", "lightgbm", "xgboost", "zarr")


def find(context: Context) -> Path:
    """The peers' Python, made if it is not there. Toy sizes install nothing and leave out what is missing."""
    if context.peers_python or context.quick:
        return context.peers_python or Path(sys.executable)
    folder = context.work / "peers"
    python, stamp = folder / "bin" / "python", folder / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    if not stamp.exists():
        context.say("making the peers' environment: a minute or two")
        venv.create(folder, with_pip=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS]
        subprocess.run(command, check=True)
        stamp.touch()
    return python


def versions(python: Path) -> dict[str, str]:
    """Versions of what is installed there."""
    code = (
        "import importlib.metadata as m, json\n"
        f"print(json.dumps({{d.metadata['Name'].lower(): d.version for d in m.distributions()"
        f" if d.metadata['Name'].lower() in {SHOWN!r}}}))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(sorted(json.loads(done.stdout).items()))
