"""The few vector instructions our kernels are built from, as LLVM IR that numba compiles for the machine it runs on.

Nothing here changes a bit of the answer: integer products are exact, and floating-point kernels spell out every
fused multiply-add, so that each machine rounds at the same places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from llvmlite import binding, ir
from numba.core import base, types, typing
from numpy.typing import DTypeLike

# What intrinsics take and return. llvmlite and numba are hardly typed: these names are for the reader.
Args: TypeAlias = Sequence[ir.Value]
Lowering: TypeAlias = base.BaseContext
Signature: TypeAlias = typing.Signature
Type: TypeAlias = types.Type
Typing: TypeAlias = typing.Context
Codegen: TypeAlias = Callable[[Lowering, ir.IRBuilder, Signature, Args], ir.Value]
Intrinsic: TypeAlias = tuple[Signature, Codegen]

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
Turn = Callable[[ir.Value, list[ir.Value]], list[ir.Value]]  # one turn of a loop: (index, values) to new values


@cache
def host_features() -> frozenset[str]:
    """Names of the instruction sets this CPU has, as LLVM spells them."""
    return frozenset(name for name, present in binding.get_host_cpu_features().items() if present)


@cache
def lanes() -> int:
    """32-bit lanes of the widest vector worth using: 16 with AVX-512, else 8 (two NEON registers make one)."""
    return 16 if {"avx512f", "avx512bw"} <= host_features() else 8


def splat(builder: ir.IRBuilder, scalar: ir.Value, width: int) -> ir.Value:
    """A vector with ``scalar`` in every lane."""
    kind = ir.VectorType(scalar.type, width)
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, width), [0] * width))


def constant(value: float, kind: ir.VectorType) -> ir.Constant:
    """The vector constant with ``value`` in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def call(builder: ir.IRBuilder, name: str, kind: ir.VectorType, *args: ir.Value) -> ir.Value:
    """An LLVM intrinsic whose arguments and result are all of vector type ``kind``, such as ``llvm.fma``."""
    suffix = f".v{kind.count}{'f32' if isinstance(kind.element, ir.FloatType) else 'f64'}"
    function = builder.module.declare_intrinsic(name + suffix, fnty=ir.FunctionType(kind, [kind] * len(args)))
    return builder.call(function, list(args))


def counted_loop(
    builder: ir.IRBuilder, count: ir.Value, step: int, start: Sequence[ir.Value], turn: Turn
) -> list[ir.Value]:
    """Run ``values = turn(k, values)`` for k = 0, step, ... below ``count``, at least once; return the last values."""
    entry = builder.block
    loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    k.add_incoming(ir.Constant(I64, 0), entry)
    values = []
    for first in start:
        values.append(builder.phi(first.type))
        values[-1].add_incoming(first, entry)
    after = turn(k, list(values))
    following = builder.add(k, ir.Constant(I64, step))
    k.add_incoming(following, loop)
    for value, new in zip(values, after, strict=True):
        value.add_incoming(new, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    builder.position_at_end(done)
    return after


def own_function(name: str, body: Callable[..., None]) -> Callable[..., ir.Value]:
    """Code for an intrinsic of integer arguments that calls ``body`` as a function of its own.

    It is never inlined, so that all registers are free for its sums.
    """

    def codegen(context: Any, builder: ir.IRBuilder, signature: object, args: Sequence[ir.Value]) -> ir.Value:
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [I64] * len(args)), name)
            function.linkage = "internal"
            function.attributes.add("noinline")
            inner = ir.IRBuilder(function.append_basic_block("entry"))
            body(inner, *function.args)
            inner.ret_void()
        builder.call(function, list(args))
        return context.get_dummy_value()

    return codegen


def prefetch(builder: ir.IRBuilder, address: ir.Value, *, write: bool) -> None:
    """Hint that the cache line at an address will soon be read or written."""
    byte = I8.as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [byte, I32, I32, I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [byte], signature)
    kind, near, data = (ir.Constant(I32, value) for value in (int(write), 3, 1))
    builder.call(function, [builder.inttoptr(address, byte), kind, near, data])


def half_of(builder: ir.IRBuilder, vector: ir.Value, part: int) -> ir.Value:
    """The lower (0) or upper (1) half of the lanes."""
    count = vector.type.count // 2
    order = ir.Constant(ir.VectorType(I32, count), list(range(part * count, (part + 1) * count)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), order)


def add_widened(builder: ir.IRBuilder, address: ir.Value, vectors: Sequence[ir.Value], bits: int = 0) -> None:
    """Add int32 vectors to the int64 at an address: the first as it is, each next one ``bits`` higher."""
    count = vectors[0].type.count // 2
    wide = ir.VectorType(I64, count)
    for part in range(2):
        here = builder.inttoptr(builder.add(address, ir.Constant(I64, 8 * count * part)), wide.as_pointer())
        total = builder.load(here, align=8)
        for number, vector in enumerate(vectors):
            value = builder.sext(half_of(builder, vector, part), wide)
            total = builder.add(total, builder.shl(value, constant(bits * number, wide)) if number else value)
        builder.store(total, here, align=8)


def mixed(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """a0 b0 a1 b1 ..."""
    count = a.type.count
    order = [index for c in range(count) for index in (c, count + c)]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, 2 * count), order))


def pinned(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The same vector, kept in a register: LLVM must not split the sums of a loop over more of them."""
    if "avx2" not in host_features():
        return vector
    return builder.asm(ir.FunctionType(vector.type, [vector.type]), "", "=x,0", [vector], False)


def dot_pairs(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Per 32-bit lane, ``a0*b0 + a1*b1`` of the two int16 it holds: one instruction where the machine has it."""
    names = {16: "llvm.x86.avx2.pmadd.wd", 32: "llvm.x86.avx512.pmaddw.d.512"}
    return _instruction(builder, names, I32, a, b) or _add_pairs(
        builder, *(builder.sext(v, ir.VectorType(I32, v.type.count)) for v in (a, b))
    )


def dot_bytes(builder: ir.IRBuilder, unsigned: ir.Value, signed: ir.Value) -> ir.Value:
    """Per 16-bit lane, ``a0*b0 + a1*b1`` of a pair of uint8 and a pair of int8, where that fits into an int16."""
    names = {32: "llvm.x86.avx2.pmadd.ub.sw", 64: "llvm.x86.avx512.pmaddubs.w.512"}
    wide = ir.VectorType(I16, unsigned.type.count)
    return _instruction(builder, names, I16, unsigned, signed) or _add_pairs(
        builder, builder.zext(unsigned, wide), builder.sext(signed, wide)
    )


VNNI_FOURS = {16: "llvm.x86.avx512.vpdpbusd.512", 8: "llvm.x86.avx512.vpdpbusd.256"}  # the latter is AVX-VNNI's too
VNNI_PAIRS = {16: "llvm.x86.avx512.vpdpwssd.512", 8: "llvm.x86.avx512.vpdpwssd.256"}
ARM_DOT, ARM_BYTES = "llvm.aarch64.neon.sdot.v4i32.v16i8", 16


def dots_are_signed() -> bool:
    """Whether both sides of ``dot_fours`` are int8: SDOT of ARM. Those of x86 take one side as uint8."""
    return "dotprod" in host_features()


def has_vnni() -> bool:
    """Whether instructions of x86 multiply integers and add them to int32 lanes, in vectors of this length."""
    wide, narrow = {"avx512vnni"}, {"avx512vnni", "avx512vl"}
    features = host_features()
    return wide <= features if lanes() == 16 else narrow <= features or "avxvnni" in features


def has_dots() -> bool:
    """Whether one instruction multiplies four bytes a lane and adds them to an int32: VNNI, or SDOT of ARM."""
    return dots_are_signed() or has_vnni()


def _vnni(builder: ir.IRBuilder, names: dict[int, str], total: ir.Value, *args: ir.Value) -> ir.Value:
    kind = ir.FunctionType(total.type, [total.type] * 3)
    words = [builder.bitcast(each, total.type) for each in args]
    return builder.call(builder.module.declare_intrinsic(names[total.type.count], fnty=kind), [total, *words])


def add_dot_pairs(builder: ir.IRBuilder, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """``total`` and what ``dot_pairs`` gives: one instruction with VNNI."""
    if has_vnni():
        return _vnni(builder, VNNI_PAIRS, total, a, b)
    return builder.add(total, dot_pairs(builder, a, b))


def dot_fours(builder: ir.IRBuilder, total: ir.Value, other: ir.Value, mine: ir.Value) -> ir.Value:
    """Per 32-bit lane, ``total + a0*b0 + a1*b1 + a2*b2 + a3*b3`` of four bytes of ``other`` (unsigned, or signed where
    ``dots_are_signed``) and four int8 of ``mine``."""
    if not has_dots():
        return emulated_dot_fours(builder, total, other, mine, signed=False)
    if not dots_are_signed():
        return _vnni(builder, VNNI_FOURS, total, other, mine)
    lane, bytes_ = ir.VectorType(I32, ARM_BYTES // 4), ir.VectorType(I8, ARM_BYTES)
    instruction = builder.module.declare_intrinsic(ARM_DOT, fnty=ir.FunctionType(lane, [lane, bytes_, bytes_]))
    halves = [[half_of(builder, each, part) for each in (total, other, mine)] for part in range(2)]
    low, high = (builder.call(instruction, half) for half in halves)
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, ARM_BYTES // 2), list(range(8))))


def emulated_dot_fours(
    builder: ir.IRBuilder, total: ir.Value, other: ir.Value, mine: ir.Value, *, signed: bool
) -> ir.Value:
    """What the instruction computes, step by step."""
    wide = ir.VectorType(I32, other.type.count)
    raised = builder.sext(other, wide) if signed else builder.zext(other, wide)
    pairs = _add_pairs(builder, raised, builder.sext(mine, wide))
    return builder.add(total, _add_pairs(builder, pairs, constant(1, pairs.type)))


def _instruction(
    builder: ir.IRBuilder, names: dict[int, str], element: ir.Type, a: ir.Value, b: ir.Value
) -> ir.Value | None:
    """Call the instruction for vectors of this length, if the machine has it."""
    name = names.get(a.type.count)
    needed = "avx512bw" if name and "avx512" in name else "avx2"
    if name is None or needed not in host_features():
        return None
    kind = ir.FunctionType(ir.VectorType(element, a.type.count // 2), [a.type, b.type])
    return builder.call(builder.module.declare_intrinsic(name, fnty=kind), [a, b])


def _add_pairs(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The products of two vectors, each two neighbours added."""
    product = builder.mul(a, b)
    undefined = ir.Constant(product.type, ir.Undefined)
    half = ir.VectorType(I32, product.type.count // 2)
    even, odd = (ir.Constant(half, list(range(start, product.type.count, 2))) for start in (0, 1))
    return builder.add(
        builder.shuffle_vector(product, undefined, even), builder.shuffle_vector(product, undefined, odd)
    )


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An uninitialised C-ordered array that starts on a cache line, as aligned vector loads need."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    offset = -raw.ctypes.data % 64
    return raw[offset : offset + size].view(dtype).reshape(shape)
