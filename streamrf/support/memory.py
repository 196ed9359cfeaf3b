"""Memory that this process uses now, its peak, and what the machine has left. All in bytes."""

from __future__ import annotations

import ctypes
import resource
import sys

import psutil

COMPILED = 220 * 2**20  # numba, LLVM and the kernels they compile, once all of them are in use
LIBRARIES = 240 * 2**20  # Python and all libraries of a worker, before it has any data


def reserved() -> int:
    """What this process will hold beside a run's own arrays, once every kernel is compiled."""
    return resident() + COMPILED


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """The most memory this process has held so far."""
    if sys.platform == "linux":
        return _high_water_mark()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most if sys.platform == "darwin" else most * 1024)


def _high_water_mark() -> int:
    """The peak of this process alone: on Linux ``ru_maxrss`` is inherited from the parent process."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return resident()  # this kernel does not report it


def available() -> int:
    return int(psutil.virtual_memory().available)


def installed() -> int:
    return int(psutil.virtual_memory().total)


def give_back() -> None:
    """Return what was freed to the system, if the C library is glibc: it keeps much of it for later."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def limit_heaps(count: int = 2) -> None:
    """Let all threads share a few heaps, if the C library is glibc. Call it before threads start.

    By default each thread gets its own heap, up to eight a core, and memory freed in one is of no use to the others:
    ten times the rows then took a tenth more memory.
    """
    arena_max = -8  # M_ARENA_MAX in malloc.h
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(arena_max, count)
