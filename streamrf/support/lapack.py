"""Cholesky factors without Python's lock: scipy's own wrapper holds it, so factors in several threads wait for one
another. Cython code calls the same routine without it, and so does this: the same bits, side by side."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache

import numpy as np

ROUTINES = {"d": "dpotrf", "f": "spotrf"}  # by the type of the matrix
WITH_INTS = re.compile(rb"void \(char \*, int \*, \w+ \*, int \*, int \*\)")  # what is known of its arguments


def cholesky(A: np.ndarray) -> bool:
    """Replace the lower triangle of a matrix in Fortran's order by its factor; False where it is not positive definite.
    The other triangle stays as it is."""
    assert A.flags.f_contiguous
    assert A.shape[0] == A.shape[1]
    routine = _routine(ROUTINES[A.dtype.char])
    if routine is None:
        return _by_scipy(A)
    size, info = ctypes.c_int(len(A)), ctypes.c_int()
    lines = ctypes.c_int(max(1, len(A)))
    routine(
        ctypes.byref(ctypes.c_char(b"L")), ctypes.byref(size), A.ctypes.data, ctypes.byref(lines), ctypes.byref(info)
    )
    return info.value == 0


def _by_scipy(A: np.ndarray) -> bool:
    from scipy.linalg import lapack

    factor, info = getattr(lapack, ROUTINES[A.dtype.char])(A, lower=1, clean=0, overwrite_a=1)
    assert factor is A or np.shares_memory(factor, A)
    return bool(info == 0)


@cache
def _routine(name: str) -> Callable[..., None] | None:
    """The routine that Cython code calls; None where its numbers are not C's, as where LAPACK has 64 bits."""
    from scipy.linalg import cython_lapack

    capsule, api = cython_lapack.__pyx_capi__[name], ctypes.pythonapi
    signature = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", api))(capsule)
    if not WITH_INTS.fullmatch(signature):
        return None
    place = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", api))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)(place(capsule, signature))
