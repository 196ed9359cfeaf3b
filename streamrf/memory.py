"""What this process uses now, what it used at its worst, and what the machine has left. All in bytes."""

from __future__ import annotations

import resource
import sys

import psutil


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """The most this process has ever held."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)


def available() -> int:
    return int(psutil.virtual_memory().available)
