"""The whole pipeline as an ONNX model: columns, scaling, map, weights, probabilities.

Rounded features take the roundings of our kernels one by one, so that they are the same integers; what remains is the
rounding of the last sum.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from streamrf.data.columns import ONEHOT, Column, Columns
from streamrf.models.export.onnx_binning import binned
from streamrf.models.export.onnx_graph import Graph, free_prefix
from streamrf.models.export.parts import BINNING, DENSE, TURN, Pipeline
from streamrf.support.errors import InputError
from streamrf.support.storage.files import atomic_write

ML = "ai.onnx.ml"


def write_onnx(pipeline: Pipeline, path: str | Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Write an .onnx file; its inputs and outputs by name, for people."""
    if Path(path).suffix != ".onnx":
        raise InputError(f"--onnx {path}: a name that ends with .onnx is wanted")
    graph = build(pipeline)
    atomic_write(path, graph.model("Predictions of a streamrf model.").SerializeToString(), overwrite=overwrite)
    return {"inputs": [one.name for one in graph.inputs], "outputs": [one.name for one in graph.outputs]}


def build(pipeline: Pipeline) -> Graph:
    graph = Graph(free_prefix(pipeline.columns.names if pipeline.columns else ()))
    X = coded(graph, pipeline.columns) if pipeline.columns else graph.input("X", np.float64, ["n", pipeline.n_inputs])
    scores = (binned if pipeline.kind == BINNING else _scores)(graph, pipeline, scaled(graph, pipeline, X))
    if pipeline.classes:
        _classes(graph, pipeline, scores)
    else:
        graph.output(scores, "prediction", np.float64, ["n", len(pipeline.intercept)])
    return graph


# -- columns


def coded(graph: Graph, columns: Columns) -> str:
    """Raw columns, an input (n, 1) each, as features: categories are text, missing is ""; in numbers it is NaN."""
    parts = [part for column in columns.columns for part in _column(graph, column)]
    joined = graph.op("Concat", *parts, axis=1)
    return graph.cast(graph.cast(joined, np.float32), np.float64) if columns.dtype == "float32" else joined


def _column(graph: Graph, column: Column) -> list[str]:
    return _category(graph, column) if column.is_category else _number(graph, column)


def _number(graph: Graph, column: Column) -> list[str]:
    value = graph.input(column.name, np.float64, ["n", 1])
    if column.fill is None:
        return [value]
    missing = graph.op("IsNaN", value)
    filled = graph.op("Where", missing, graph.constant([[column.fill]], np.float64), value)
    return [filled, graph.cast(missing, np.float64)] if column.flag else [filled]


def _category(graph: Graph, column: Column) -> list[str]:
    """Places of the levels; "" is a place of its own, -2, and a level that training had not seen is -1."""
    value = graph.input(column.name, str, ["n", 1])
    keys = [*column.levels] if "" in column.levels else [*column.levels, ""]
    places = [*range(len(column.levels)), -2][: len(keys)]
    code = graph.op(
        "LabelEncoder", value, domain=ML, keys_strings=keys, values_int64s=places, default_int64=-1
    )  # fmt: skip
    missing = graph.op("Equal", code, graph.constant([[-2]], np.int64))
    numbers = _onehot(graph, column, code) if column.kind == ONEHOT else _ordinal(graph, column, code)
    if column.fill is None or column.kind != ONEHOT:
        fill = np.nan if column.fill is None else column.fill
        numbers = graph.op("Where", missing, graph.constant([[fill]], np.float64), numbers)
    return [numbers, graph.cast(missing, np.float64)] if column.flag else [numbers]


def _onehot(graph: Graph, column: Column, code: str) -> str:
    places = graph.constant(np.arange(len(column.levels))[None], np.int64)
    return graph.cast(graph.op("Equal", code, places), np.float64)


def _ordinal(graph: Graph, column: Column, code: str) -> str:
    strange = graph.op("Equal", code, graph.constant([[-1]], np.int64))
    place = graph.op("Where", strange, graph.constant([[len(column.levels)]], np.int64), code)
    return graph.cast(place, np.float64)


# -- scaling


def scaled(graph: Graph, pipeline: Pipeline, X: str) -> str:
    """Scaled inputs in the type that the map wants."""
    s = pipeline.scaling
    Z = graph.op("Mul", graph.op("Sub", X, graph.constant(s.centre[None])), graph.constant(s.factor[None]))
    curves = {int(j): _log_curve(graph, pipeline, X, k) for k, j in enumerate(s.log_columns)}
    curves |= {int(j): _rank_curve(graph, pipeline, X, k) for k, j in enumerate(s.rank_columns)}
    if curves:
        Z = graph.op("Concat", *_with_curves(graph, Z, curves, s.n_inputs), axis=1)
    if len(s.rotation):
        Z = graph.op("MatMul", Z, graph.constant(s.rotation))
    return Z if pipeline.double else graph.cast(Z, np.float32)


def _with_curves(graph: Graph, Z: str, curves: dict[int, str], d: int) -> list[str]:
    """Columns in order: runs of Z between those that a curve replaces."""
    parts, start = [], 0
    for j in [*sorted(curves), d]:
        if start < j:
            parts.append(_columns(graph, Z, start, j))
        if j < d:
            parts.append(curves[j])
        start = j + 1
    return parts


def _columns(graph: Graph, X: str, start: int, stop: int) -> str:
    ends = (graph.constant([value], np.int64) for value in (start, stop, 1))
    return graph.op("Slice", X, *ends)


def _log_curve(graph: Graph, pipeline: Pipeline, X: str, k: int) -> str:
    s = pipeline.scaling
    j = int(s.log_columns[k])
    x = _columns(graph, X, j, j + 1)
    grown = graph.op("Mul", graph.op("Abs", x), graph.constant([[s.log_rates[k]]]))
    log = graph.op("Mul", graph.op("Sign", x), graph.op("Log", graph.op("Add", grown, graph.constant([[1.0]]))))
    return graph.op("Mul", graph.op("Sub", log, graph.constant([[s.centre[j]]])), graph.constant([[s.factor[j]]]))


def _rank_curve(graph: Graph, pipeline: Pipeline, X: str, k: int) -> str:
    """Piecewise linear: the first level, and for each piece its rise times the share of it that lies below x."""
    s = pipeline.scaling
    a, b = s.rank_offsets[k : k + 2]
    knots, levels, j = s.knots[a:b], s.levels[a:b], int(s.rank_columns[k])
    if len(knots) < 2:
        x = _columns(graph, X, j, j + 1)
        return graph.op("Add", graph.op("Mul", x, graph.constant([[0.0]])), graph.constant([[levels[0]]]))
    x = graph.op("Sub", _columns(graph, X, j, j + 1), graph.constant(knots[None, :-1]))
    inside = graph.op("Min", graph.op("Max", x, graph.constant([[0.0]])), graph.constant(np.diff(knots)[None]))
    slopes = graph.constant((np.diff(levels) / np.diff(knots))[:, None])
    return graph.op("Add", graph.op("MatMul", inside, slopes), graph.constant([[levels[0]]]))


# -- map


def _scores(graph: Graph, pipeline: Pipeline, Z: str) -> str:
    features = graph.cast(cosines(graph, pipeline, _turns(graph, pipeline, Z)), np.float64)
    product = graph.op("MatMul", features, graph.constant(pipeline.coefficients))
    return graph.op("Add", product, graph.constant(pipeline.intercept[None]))


def _turns(graph: Graph, pipeline: Pipeline, Z: str) -> str:
    arrays = pipeline.arrays
    if pipeline.kind != DENSE:
        return structured(graph, pipeline, Z)
    if pipeline.double:
        return graph.op(
            "Add", graph.op("MatMul", Z, graph.constant(arrays["W"])), graph.constant(arrays["phases"][None])
        )
    wide = graph.cast(Z, np.float64)
    rows = graph.op("Unsqueeze", graph.op("Transpose", wide, perm=[1, 0]), graph.constant([2], np.int64))
    zeros = graph.op("Mul", _columns(graph, Z, 0, 1), graph.constant([[0.0]], np.float32))  # (n, 1): n is not known yet
    start = graph.op("Add", zeros, graph.constant(arrays["phases"][None]))
    weights = graph.cast(graph.constant(arrays["W"]), np.float64)
    return graph.scan(start, [rows, weights], [np.float32, np.float64, np.float64], _multiply_add)


def _multiply_add(body: Graph, total: str, x: str, w: str) -> str:
    """``total + x w`` rounded once, as a fused multiply-add is: a product of two float32 is exact in float64."""
    product = body.op("Mul", x, w)
    return body.cast(body.op("Add", product, body.cast(total, np.float64)), np.float32)


def structured(graph: Graph, pipeline: Pipeline, Z: str) -> str:
    """Products of diagonals and Hadamard matrices, in float32 and in the order of our kernel."""
    arrays = pipeline.arrays
    length, d = arrays["diagonals"].shape[2], pipeline.n_inputs
    padded = graph.op("Pad", Z, graph.constant([0, 0, 0, length - d], np.int64))
    blocks = []
    for diagonals, permutation in zip(arrays["diagonals"], arrays["permutations"], strict=True):
        x = padded
        for stage, diagonal in enumerate(diagonals):
            if stage == 1 and len(permutation):
                x = graph.op("Gather", x, graph.constant(permutation, np.int64), axis=1)
            x = hadamard(graph, graph.op("Mul", x, graph.constant(diagonal[None])), length)
        blocks.append(x)
    F = len(arrays["stretch"])
    projected = blocks[0] if len(blocks) == 1 else graph.op("Concat", *blocks, axis=1)
    projected = graph.op("Mul", _columns(graph, projected, 0, F), graph.constant(arrays["stretch"][None]))
    repeats = len(arrays["phases"]) // F
    if repeats > 1:
        projected = graph.op("Concat", *[projected] * repeats, axis=1)
    turned = graph.op("Mul", projected, graph.constant([[TURN]], np.float32))
    return graph.op("Add", turned, graph.constant(arrays["phases"][None]))


def hadamard(graph: Graph, x: str, length: int) -> str:
    """Two bits of the index at a time, the topmost first, which come out as the lowest."""
    left = length
    while left >= 4:
        x0, x1, x2, x3 = _parts(graph, x, 4, length)
        a, b = graph.op("Add", x0, x1), graph.op("Sub", x0, x1)
        c, d = graph.op("Add", x2, x3), graph.op("Sub", x2, x3)
        pairs = [("Add", a, c), ("Add", b, d), ("Sub", a, c), ("Sub", b, d)]
        x = _interleaved(graph, [graph.op(*pair) for pair in pairs], length)
        left //= 4
    if left == 2:
        low, high = _parts(graph, x, 2, length)
        x = _interleaved(graph, [graph.op("Add", low, high), graph.op("Sub", low, high)], length)
    return x


def _parts(graph: Graph, x: str, count: int, length: int) -> list[str]:
    step = length // count
    return [_columns(graph, x, i * step, (i + 1) * step) for i in range(count)]


def _interleaved(graph: Graph, parts: list[str], length: int) -> str:
    last = graph.constant([2], np.int64)
    stacked = graph.op("Concat", *(graph.op("Unsqueeze", part, last) for part in parts), axis=2)
    return graph.op("Reshape", stacked, graph.constant([-1, length], np.int64))


def cosines(graph: Graph, pipeline: Pipeline, t: str) -> str:
    """cos(2 pi t) by our polynomial, rounded to integers where the model's features are."""
    number = np.float64 if pipeline.double else np.float32
    fused = pipeline.kind == DENSE and not pipeline.double
    t = graph.op("Sub", t, graph.op("Round", t))
    g = graph.op("Sub", graph.constant([[0.25]], number), graph.op("Abs", t))
    square, (*terms, last) = graph.op("Mul", g, g), pipeline.sine
    series = graph.constant([[last]], number)
    for term in reversed(terms):
        series = _fused(graph, series, square, term) if fused else _plain(graph, series, square, term, number)
    value = graph.op("Mul", series, g)
    if not pipeline.rounded:
        return value
    return graph.op("Round", graph.op("Mul", value, graph.constant([[pipeline.scale]], number)))


def _plain(graph: Graph, series: str, square: str, term: float, number: Any) -> str:
    return graph.op("Add", graph.op("Mul", series, square), graph.constant([[term]], number))


def _fused(graph: Graph, series: str, square: str, term: float) -> str:
    product = graph.op("Mul", graph.cast(series, np.float64), graph.cast(square, np.float64))
    return graph.cast(graph.op("Add", product, graph.constant([[term]], np.float64)), np.float32)


# -- classes


def _classes(graph: Graph, pipeline: Pipeline, scores: str) -> None:
    assert pipeline.slope is not None
    assert pipeline.shift is not None
    logits = graph.op(
        "Add", graph.op("MatMul", scores, graph.constant(pipeline.slope)), graph.constant(pipeline.shift[None])
    )
    if len(pipeline.classes) == 2:
        logits = graph.op("Concat", graph.op("Mul", logits, graph.constant([[0.0]])), logits, axis=1)
    labels = np.asarray(pipeline.classes)
    place = graph.op("ArgMax", logits, axis=1, keepdims=0)
    kind: Any = str if labels.dtype.kind == "U" else labels.dtype
    graph.output(graph.op("Gather", graph.constant(labels), place), "label", kind, ["n"])
    graph.output(graph.op("Softmax", logits, axis=1), "probabilities", np.float64, ["n", len(labels)])
