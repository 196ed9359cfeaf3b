"""The few vector instructions our kernels are built from, as LLVM IR that numba compiles for the machine it runs on.

Nothing here changes a bit of the answer: integer products are exact, and floating-point kernels spell out every
fused multiply-add, so that each machine rounds at the same places.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding, ir

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)


@cache
def host_features() -> frozenset[str]:
    """Names of the instruction sets this CPU has, as LLVM spells them."""
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


@cache
def lanes() -> int:
    """32-bit lanes of the widest vector worth using: 16 with AVX-512, else 8 (two NEON registers make one)."""
    return 16 if {"avx512f", "avx512bw"} <= host_features() else 8


def splat(builder: Any, scalar: Any, width: int) -> Any:
    """A vector with ``scalar`` in every lane."""
    kind = ir.VectorType(scalar.type, width)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, width), [0] * width))


def constant(value: float, kind: Any) -> Any:
    """The vector constant with ``value`` in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def call(builder: Any, name: str, kind: Any, *args: Any) -> Any:
    """An LLVM intrinsic whose arguments and result are all of vector type ``kind``, such as ``llvm.fma``."""
    suffix = f".v{kind.count}{'f32' if isinstance(kind.element, ir.FloatType) else 'f64'}"
    function = builder.module.declare_intrinsic(name + suffix, fnty=ir.FunctionType(kind, [kind] * len(args)))
    return builder.call(function, list(args))


def prefetch(builder: Any, address: Any) -> None:
    """Ask for the cache line at an address that will be read and written; a hint, nothing more."""
    byte = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
    write, near, data = (ir.Constant(I32, value) for value in (1, 3, 1))
    builder.call(function, [builder.inttoptr(address, byte), write, near, data])


def half_of(builder: Any, vector: Any, part: int) -> Any:
    """The lower (0) or upper (1) half of the lanes."""
    count = vector.type.count // 2
    order = ir.Constant(ir.VectorType(I32, count), list(range(part * count, (part + 1) * count)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), order)


def pinned(builder: Any, vector: Any) -> Any:
    """The same vector, in a register: sums of several turns of a loop are not to be reordered into more of them."""
    if "avx2" not in host_features():
        return vector
    return builder.asm(ir.FunctionType(vector.type, [vector.type]), "", "=x,0", [vector], False)


def dot_pairs(builder: Any, a: Any, b: Any) -> Any:
    """Per 32-bit lane, ``a0*b0 + a1*b1`` of the two int16 it holds: one instruction where the machine has it."""
    width = a.type.count // 2
    wide = ir.VectorType(I32, width)
    name = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}.get(width)
    if name and ("avx2" if width == 8 else "avx512bw") in host_features():
        function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(wide, [a.type, a.type]))
        return builder.call(function, [a, b])
    product = builder.mul(*(builder.sext(v, ir.VectorType(I32, 2 * width)) for v in (a, b)))
    undefined = ir.Constant(product.type, ir.Undefined)
    even, odd = (ir.Constant(wide, list(range(start, 2 * width, 2))) for start in (0, 1))
    return builder.add(
        builder.shuffle_vector(product, undefined, even), builder.shuffle_vector(product, undefined, odd)
    )


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised C-ordered array that starts on a cache line, as aligned vector loads need."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    return raw[offset : offset + size].view(dtype).reshape(shape)
