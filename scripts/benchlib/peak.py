"""The two lines of a roofline, measured: operations a second in registers, and bytes a second of a copy in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from streamrf.support.simd import (
    I16,
    I32,
    I64,
    aligned_empty,
    call,
    constant,
    dot_pairs,
    host_features,
    lanes,
    pinned,
)
from streamrf.support.threads import Threads, seconds_of

SUMS = 12  # independent accumulators: more than the instruction has cycles of latency, times two units


def _float(kind: Any) -> Callable[[Any, Any, Any], Any]:
    return lambda builder, total, operand: call(builder, "llvm.fma", kind, operand, operand, total)


def _pairs(builder: Any, total: Any, operand: Any) -> Any:
    halves = builder.bitcast(operand, ir.VectorType(I16, 2 * operand.type.count))
    return builder.add(total, dot_pairs(builder, halves, halves))


def _bytes(builder: Any, total: Any, operand: Any) -> Any:
    kind = ir.FunctionType(operand.type, [operand.type] * 3)
    name = f"llvm.x86.avx512.vpdpbusd.{32 * operand.type.count}"
    return builder.call(builder.module.declare_intrinsic(name, fnty=kind), [total, operand, operand])


def kinds() -> dict[str, tuple[Any, Callable[[Any, Any, Any], Any], int]]:
    """Name: the accumulators' type, one step, and operations (a multiplication and an addition are two) of a step."""
    width = lanes()
    words = ir.VectorType(I32, width)
    single, double = ir.VectorType(ir.FloatType(), width), ir.VectorType(ir.DoubleType(), width // 2)
    found = {"float32": (single, _float(single), 2 * width), "float64": (double, _float(double), width),
             "12 bits": (words, _pairs, 4 * width)}  # fmt: skip
    if "avx512vnni" in host_features() and width == 16:
        found["8 bits"] = (words, _bytes, 8 * width)
    return found


def burner(name: str) -> Callable[[int, int], None]:
    """A compiled loop that does SUMS steps a turn and touches no memory; its arguments are turns and an address."""
    kind, step, _ = kinds()[name]

    @intrinsic
    def burn(typing: Any, turns: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = builder.inttoptr(args[1], kind.as_pointer())
            operand, entry = builder.load(place, align=64), builder.block
            loop, done = builder.append_basic_block("turns"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            k, held = builder.phi(I64), builder.phi(kind)
            sums = [builder.phi(kind) for _ in range(SUMS)]
            same = pinned(builder, held)  # it may be another one every turn, as far as the compiler knows
            after = [pinned(builder, step(builder, total, same)) for total in sums]
            following = builder.add(k, ir.Constant(I64, 1))
            starts = [ir.Constant(I64, 0), operand, *[constant(0, kind)] * SUMS]
            for phi, first, then in zip([k, held, *sums], starts, [following, same, *after], strict=True):
                phi.add_incoming(first, entry)
                phi.add_incoming(then, loop)
            builder.cbranch(builder.icmp_signed("<", following, args[0]), loop, done)
            builder.position_at_end(done)
            for index, total in enumerate(after):
                builder.store(total, builder.gep(place, [ir.Constant(I64, 1 + index)]), align=64)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), codegen

    @njit(nogil=True)
    def run(turns: int, address: int) -> None:
        burn(turns, address)

    return run


def operations(name: str, threads: Threads, repeats: int, turns: int) -> float:
    """Billions of operations a second on all threads."""
    work, places = burner(name), [aligned_empty((64 * (SUMS + 1),), np.uint8) for _ in range(threads.count)]
    for place in places:
        place[:] = 0
        work(1, place.ctypes.data)
    seconds = min(seconds_of(lambda: threads.each(lambda place: work(turns, place.ctypes.data), places), repeats))
    return 1e-9 * threads.count * turns * SUMS * kinds()[name][2] / seconds


def copying(threads: Threads, repeats: int, size: int) -> float:
    """Billions of bytes a second, read and written, of a copy much larger than the caches."""
    source, target = np.zeros(size, np.uint64), np.ones(size, np.uint64)
    spans = [slice(i * size // threads.count, (i + 1) * size // threads.count) for i in range(threads.count)]

    def work(span: slice) -> None:
        target[span] = source[span]

    return 1e-9 * 2 * source.nbytes / min(seconds_of(lambda: threads.each(work, spans), repeats))


def measure(count: int, repeats: int, size: int) -> dict[str, Any]:
    with Threads(count) as threads:
        gops = {name: operations(name, threads, repeats, max(1000, size // 2)) for name in kinds()}
        return {"gops": gops, "copy": copying(threads, repeats, size), "threads": count}
