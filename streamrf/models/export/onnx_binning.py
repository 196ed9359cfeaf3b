"""Random binning in ONNX: cells of a grid, the hash of a row's cells, and a look-up, grid after grid.

The hash is arithmetic modulo 2^32 and 2^64. Here it is done with products below 2^63, so that nothing overflows and no
operator on bits is needed.
"""

from __future__ import annotations

import numpy as np

from streamrf.features.binning.map import GOLDEN
from streamrf.models.export.onnx_graph import Graph
from streamrf.models.export.parts import Pipeline

FARTHEST = 2.0**30  # cells beyond are one cell
WORD, HALF = 1 << 32, 1 << 16
MIX_LOW, MIX_HIGH = GOLDEN % WORD, GOLDEN // WORD


def binned(graph: Graph, pipeline: Pipeline, Z: str) -> str:
    """(n, outputs) scores of scaled inputs."""
    arrays, outputs = pipeline.arrays, len(pipeline.intercept)
    tables = pipeline.coefficients.astype(np.float32).reshape(len(arrays["shifts"]), -1, outputs)
    column = graph.op("Slice", Z, *(graph.constant([value], np.int64) for value in (0, 1, 1)))
    zeros = graph.op("Mul", graph.cast(column, np.float64), graph.constant([[0.0]]))  # (n, 1): n is not known yet
    start = graph.op("Add", zeros, graph.constant(np.zeros((1, outputs))))
    scanned = [graph.constant(arrays["shifts"]), graph.constant(arrays["inverses"])]
    scanned += [graph.constant(arrays[half].astype(np.int64)) for half in ("low", "high")]
    types = [np.float64, np.float32, np.float32, np.int64, np.int64, np.float32]
    drop = 1 << (32 - int(arrays["bits"]))

    def look_up(body: Graph, total: str, shift: str, inverse: str, low: str, high: str, table: str) -> str:
        cells = _cells(body, Z, shift, inverse)
        word = _top_word(body, _hash(body, cells, low), _hash(body, cells, high))
        found = body.op("Gather", table, body.op("Div", word, body.constant(drop, np.int64)), axis=0)
        return body.op("Add", total, body.cast(found, np.float64))

    total = graph.scan(start, [*scanned, graph.constant(tables)], types, look_up)
    return graph.op("Add", total, graph.constant(pipeline.intercept[None]))


def _cells(body: Graph, Z: str, shift: str, inverse: str) -> str:
    place = body.op("Floor", body.op("Mul", body.op("Sub", Z, shift), inverse))
    low, high = (body.constant(end, np.float32) for end in (-FARTHEST, FARTHEST))
    return body.cast(body.op("Min", body.op("Max", place, low), high), np.int64)


def _hash(body: Graph, cells: str, multipliers: str) -> str:
    """(n,): the sum of cells times multipliers, modulo 2^32."""
    word = body.constant(WORD, np.int64)
    products = body.op("Mod", body.op("Mul", cells, multipliers), word)
    return body.op("Mod", body.op("ReduceSum", products, body.constant([1], np.int64), keepdims=0), word)


def _top_word(body: Graph, low: str, high: str) -> str:
    """The upper 32 bits of ``(high 2^32 + low) GOLDEN`` modulo 2^64."""
    carried = body.op("Add", _upper(body, low, MIX_LOW), _lower(body, low, MIX_HIGH))
    total = body.op("Add", carried, _lower(body, high, MIX_LOW))
    return body.op("Mod", total, body.constant(WORD, np.int64))


def _halves(body: Graph, value: str) -> tuple[str, str]:
    half = body.constant(HALF, np.int64)
    return body.op("Div", value, half), body.op("Mod", value, half)


def _upper(body: Graph, value: str, factor: int) -> str:
    """The upper 32 bits of ``value factor``, both below 2^32."""
    upper, lower = _halves(body, value)
    m, half = body.constant(factor, np.int64), body.constant(HALF, np.int64)
    carried = body.op("Div", body.op("Mul", lower, m), half)
    return body.op("Div", body.op("Add", body.op("Mul", upper, m), carried), half)


def _lower(body: Graph, value: str, factor: int) -> str:
    """``value factor``, modulo 2^32 but for a multiple of it below 2^48."""
    upper, lower = _halves(body, value)
    m, half = body.constant(factor, np.int64), body.constant(HALF, np.int64)
    shifted = body.op("Mul", body.op("Mod", body.op("Mul", upper, m), half), half)
    return body.op("Add", shifted, body.op("Mul", lower, m))
