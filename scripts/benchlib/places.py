"""Where things are: the project, the real data, results, and what may be thrown away."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
DATA = Path(os.environ.get("STREAMRF_DATA", ROOT.parent / "shared" / "data"))
WORK = Path(os.environ.get("STREAMRF_BENCH", ROOT / "build" / "bench"))
RESULTS = ROOT / "docs" / "benchmarks"
PICTURES = ROOT / "docs" / "pictures"
PAGE = ROOT / "docs" / "benchmarks.md"
SCALING = ROOT / "docs" / "scaling.md"
