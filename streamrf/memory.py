"""What this process uses now, what it used at its worst, and what the machine has left. All in bytes."""

from __future__ import annotations

import resource
import sys

import psutil


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """The most this process has ever held."""
    if sys.platform == "linux":
        return _high_water_mark()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)


def _high_water_mark() -> int:
    """From the kernel's account of this program alone: Linux hands ``ru_maxrss`` on from whoever started us."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return resident()  # a kernel that keeps no such account


def available() -> int:
    return int(psutil.virtual_memory().available)
