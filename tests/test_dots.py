"""The tiles that multiply four bytes by one instruction: it is in the assembly of every target that has it, and what it
computes, emulated step by step, gives the right integers. (SDOT has been compiled and emulated here, never run.)"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import numpy as np
import pytest
from llvmlite import binding, ir

from streamrf.statistics.gram_kernels import Layout, tiles
from streamrf.statistics.gram_kernels.integer import DotProduct
from streamrf.statistics.gram_kernels.tiles import COLUMNS, DOTS, FOURS, PAIRS, UNROLLED, VECTORS
from streamrf.support import simd
from streamrf.support.simd import I64, aligned_empty, emulated_dot_fours, has_dots, lanes
from streamrf.support.threads import ALONE

AVX512 = {"avx2", "avx512f", "avx512bw", "avx512vl", "avx512vnni"}
TARGETS = {
    "AVX-512 VNNI": ("x86_64-unknown-linux-gnu", AVX512, 16, r"vpdpbusd\t.*%zmm"),
    "AVX-512 VNNI, 256 bits": ("x86_64-unknown-linux-gnu", AVX512 - {"avx512bw"}, 8, r"vpdpbusd\t.*%ymm"),
    "AVX-VNNI": ("x86_64-unknown-linux-gnu", {"avx2", "avxvnni"}, 8, r"\{vex\}\tvpdpbusd\t.*%ymm"),
    "ARM": ("aarch64-unknown-linux-gnu", {"neon", "dotprod"}, 8, r"sdot\tv\d+\.4s, v\d+\.16b"),
}
MULTIPLIED = UNROLLED * VECTORS * COLUMNS[DOTS]  # vectors of a turn


def module_of(way: int) -> ir.Module:
    """One function: a register tile into ``out``."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 4), "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    tiles._store(builder, way, *function.args)
    builder.ret_void()
    return module


@pytest.fixture
def target(request, monkeypatch) -> Callable[..., str]:
    """The assembly of a tile for a CPU that is not this one."""
    triple, features, width, _ = TARGETS[request.param]
    monkeypatch.setattr(simd, "host_features", lambda: frozenset(features))
    for module in (simd, tiles):
        monkeypatch.setattr(module, "lanes", lambda: width)
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()

    def assembly(way: int, cpu: str = "") -> str:
        parsed = binding.parse_assembly(str(module_of(way)))
        parsed.triple = triple
        parsed.verify()
        machine = binding.Target.from_triple(triple).create_target_machine(
            cpu=cpu, features=",".join(f"+{name}" for name in sorted(features)), opt=3
        )
        return machine.emit_assembly(parsed)

    return assembly


@pytest.mark.parametrize(("target", "name"), [(name, name) for name in TARGETS], indirect=["target"])
def test_the_instruction_is_in_the_assembly(target, name):
    *_, pattern = TARGETS[name]
    registers = 2 if name == "ARM" else 1  # of a vector
    assert has_dots()
    assert len(re.findall(pattern, target(DOTS))) == MULTIPLIED * registers
    assert not re.search("vpdpbusd|sdot", target(FOURS))


@pytest.mark.parametrize("target", ["AVX-512 VNNI", "AVX-VNNI"], indirect=True)
def test_pairs_are_multiplied_and_added_by_one_instruction(target):
    """For some CPUs LLVM makes two of it here and there: they are more, but wait less for each other."""
    assert re.search("vpdpwssd", target(PAIRS))


@pytest.mark.parametrize("target", ["AVX-512 VNNI"], indirect=True)
def test_all_pairs_are_on_a_cpu_that_llvm_takes_for_fast_at_it(target):
    assembly = target(PAIRS, "znver5")
    assert len(re.findall("vpdpwssd", assembly)) == UNROLLED * VECTORS * COLUMNS[PAIRS]
    assert "vpmaddwd" not in assembly


@pytest.mark.parametrize("features", [{"avx2"}, {"avx2", "avx512f", "avx512bw"}, {"neon"}, set()])
def test_cpus_without_it_are_not_asked_for_it(monkeypatch, features):
    monkeypatch.setattr(simd, "host_features", lambda: frozenset(features))
    assert not has_dots()


# -- arithmetic


def run_tile(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A tile compiled for this CPU: a (1 + groups, rows of a tile) and b (groups, columns), four bytes each."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=2
    )
    out = aligned_empty((COLUMNS[DOTS], a.shape[1]), np.int32)
    with binding.create_mcjit_compiler(binding.parse_assembly(str(module_of(DOTS))), machine) as engine:
        engine.finalize_object()
        tile = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(engine.get_function_address("tile"))
        tile(a.ctypes.data, b.ctypes.data, len(b), out.ctypes.data)
    return out


def packed(rows: np.ndarray, columns: np.ndarray, raised: int) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, tile) and (n, columns) in groups of four, the columns raised; sums begin with what that adds."""
    groups = len(rows) // FOURS
    a = aligned_empty((1 + groups, rows.shape[1]), np.int32)
    a[0] = -raised * rows.sum(axis=0)
    quarters = rows.astype(np.int8).reshape(groups, FOURS, -1).transpose(0, 2, 1)
    a[1:] = np.ascontiguousarray(quarters).view(np.int32)[..., 0]
    others = (columns + raised).astype(np.uint8).reshape(groups, FOURS, -1).transpose(0, 2, 1)
    b = aligned_empty((groups, columns.shape[1]), np.int32)
    b[:] = np.ascontiguousarray(others).view(np.int32)[..., 0]
    return a, b


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("way", ["this CPU", "VNNI, emulated", "SDOT, emulated"])
def test_tiles_are_right(monkeypatch, way, extreme):
    if way == "this CPU" and not has_dots():
        pytest.skip("this CPU has no such instruction")
    signed = way == "SDOT, emulated" or (way == "this CPU" and simd.dots_are_signed())
    if way != "this CPU":
        monkeypatch.setattr(
            tiles, "dot_fours", lambda builder, *args: emulated_dot_fours(builder, *args, signed=signed)
        )
    rng, shapes = np.random.default_rng(0), [(FOURS * 256, VECTORS * lanes()), (FOURS * 256, COLUMNS[DOTS])]
    rows, columns = (
        np.tile(rng.choice([-127, 127], shape[1]), (shape[0], 1)) if extreme else rng.integers(-127, 128, shape)
        for shape in shapes
    )
    found = run_tile(*packed(rows, columns, 0 if signed else 128))
    assert np.array_equal(found, columns.T @ rows)


@pytest.mark.skipif(not has_dots(), reason="this CPU has no such instruction")
def test_features_of_minus_128_would_fit_too():
    """Eight bits are +-127; nothing breaks one step beyond."""
    Z = np.full((5000, 7), -128)
    Z[:, ::2] = 127
    layout = Layout(7)
    totals = np.zeros(layout.length, np.int64)
    DotProduct().add(Z.astype(np.int8), layout, totals, ALONE)
    assert np.array_equal(layout.columns(totals, 0, 7), Z.T @ Z)
