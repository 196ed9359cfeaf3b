"""How loops are compiled: for the types they first meet, into numba's cache on disk, and without Python's lock.

Compiling is what a first run waits for, so nothing is compiled that is not called.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event
from numba.core.caching import FunctionCache


class _WithoutCollections(event.Listener):
    """Holds back Python's garbage collector during each compilation: the compiler makes millions of small objects, and
    an eighth of its time went into looking through them. Numba's lock lets one thread compile at a time."""

    def __init__(self) -> None:
        self.depth, self.collecting = 0, False

    def on_start(self, event: event.Event) -> None:
        if not self.depth:
            self.collecting = gc.isenabled()
            gc.disable()
        self.depth += 1

    def on_end(self, event: event.Event) -> None:
        self.depth -= 1
        if not self.depth and self.collecting:
            gc.enable()


event.register("numba:compile", _WithoutCollections())


def kernel(function: Callable[..., Any]) -> Any:
    """A loop that Python calls."""
    return njit(cache=True, nogil=True, no_cfunc_wrapper=True)(function)


def inner_kernel(function: Callable[..., Any]) -> Any:
    """What kernels alone call: compiled into them, without what a call from Python would take."""
    return njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def inlined_kernel(function: Callable[..., Any]) -> Any:
    """The same for a small step of a loop: no call is left of it. Nothing is divided by zero in it, and nobody asks
    whether it is, so that several numbers are divided at once."""
    bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "forceinline": True}
    return njit(nogil=True, error_model="numpy", **bare)(function)


def is_cached(function: Callable[..., Any]) -> bool:
    """Whether numba's cache has a kernel as its file is now, for some types and some CPU."""
    written: Any = inspect.unwrap(function)
    place, changed = Path(FunctionCache(written).cache_path), Path(inspect.getfile(written)).stat().st_mtime
    return any(index.stat().st_mtime >= changed for index in place.glob(f"*.{written.__name__}-*.nbi"))
