"""How loops are compiled: for the types they first meet, into numba's cache on disk, and without Python's lock.

Compiling is what a first run waits for, so nothing is compiled that is not called, and nothing twice: of processes that
start together, one compiles a loop, and the others wait for it.
"""

from __future__ import annotations

import fcntl
import gc
import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

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


class SharedCache(FunctionCache):
    """Numba's cache, of processes that fill it at once. Whoever reads it claims the function until it is found or
    saved: one process compiles, and no other meets an index whose data is still to be written."""

    PATIENCE = 60.0  # seconds until a process that may have been stopped is waited for no longer

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.lock = Path(self.cache_path, f"{function.__qualname__}-{function.__code__.co_firstlineno}.lock")
        self._claim: BinaryIO | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self._release()  # compiling may have failed
        self._claim = self._claimed()
        found = super().load_overload(sig, target_context)
        if found is not None:
            self._release()
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            if self._claim is not None:
                super().save_overload(sig, data)
        finally:
            self._release()

    def _claimed(self) -> BinaryIO | None:
        self.lock.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.lock, "ab")  # noqa: SIM115 (what is claimed stays open)
        end = time.monotonic() + self.PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                time.sleep(0.005)
            except OSError:  # a file system without locks
                return file
        file.close()
        return None

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.close()
        self._claim = None


def kernel(function: Callable[..., Any]) -> Any:
    """A loop that Python calls."""
    made = njit(nogil=True, no_cfunc_wrapper=True)(function)
    made._cache = SharedCache(function)  # what ``cache=True`` does, with one that is not shared
    return made


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
