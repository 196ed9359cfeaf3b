"""What this process uses now, what it used at its worst, and what the machine has left. All in bytes."""

from __future__ import annotations

import ctypes
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


def limit_heaps(count: int = 2) -> None:
    """Let all threads share a few heaps, where the C library is glibc.

    It would give each thread one of its own, up to eight a core, and what is freed in one is of no use to the others:
    ten times the rows then took a tenth more memory. Call it before threads start.
    """
    arena_max = -8  # M_ARENA_MAX in malloc.h
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(arena_max, count)
