"""The whole model as an ONNX model: columns, scaling, map, weights, probabilities.

It differs from our own predictions by the rounding of the last sum only.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import numpy as np

from streamrf.data.columns import ONEHOT, PERIODS, TARGET, Column, Columns
from streamrf.models.export import ExportedMap, ExportedModel
from streamrf.models.export.onnx_maps import Graph, free_prefix, scores
from streamrf.statistics.scores import FARTHEST
from streamrf.support.errors import InputError
from streamrf.support.storage.files import atomic_write

ML = "ai.onnx.ml"


def write_onnx(model: ExportedModel, path: str | Path, *, overwrite: bool = False) -> dict[str, list[str]]:
    """Write an .onnx file; its inputs and outputs by name, for people."""
    if Path(path).suffix != ".onnx":
        raise InputError(f"{path}: the name must end with .onnx")
    graph = build(model)
    atomic_write(path, graph.model("Predictions of a streamrf model.").SerializeToString(), overwrite=overwrite)
    return {"inputs": [one.name for one in graph.inputs], "outputs": [one.name for one in graph.outputs]}


def build(model: ExportedModel) -> Graph:
    graph = Graph(free_prefix(model.columns.names if model.columns else ()))
    X = _coded(graph, model.columns) if model.columns else graph.input("X", np.float64, ["n", model.n_inputs])
    found = [scores(graph, each, _scaled(graph, each, X)) for each in model.maps]
    if model.shares is not None and model.intercept is not None:
        parts = [graph.op("Mul", each, share[None]) for each, share in zip(found, model.shares, strict=True)]
        found = [*parts, graph.constant(model.intercept[None])]
    result = reduce(lambda total, score: graph.op("Add", total, score), found)
    if model.classes:
        _classes(graph, model, result)
    else:
        graph.output(result, "prediction", np.float64, ["n", model.outputs])
    return graph


# -- columns


def _coded(graph: Graph, columns: Columns) -> str:
    """Raw columns, an input (n, 1) each, as features: categories are text, missing is ""; in numbers it is NaN."""
    parts = [part for column in columns.columns for part in _column(graph, column, columns.dtype)]
    joined = graph.op("Concat", *parts, axis=1)
    return graph.cast(graph.cast(joined, np.float32), np.float64) if columns.dtype == "float32" else joined


def _column(graph: Graph, column: Column, dtype: str) -> list[str]:
    return _category(graph, column) if column.is_category else _number(graph, column, dtype)


def _number(graph: Graph, column: Column, dtype: str) -> list[str]:
    value = graph.input(column.name, np.float64, ["n", 1])
    if column.fill is None:
        return [value, *_circles(graph, column, value)]
    missing = graph.op("Not", graph.op("Less", graph.op("Abs", value), [[np.inf]]))  # NaN is not less either
    filled = graph.op("Where", missing, graph.constant([[column.fill]], np.float64), value)
    parts = [filled, *_circles(graph, column, filled), *_value_means(graph, column, filled, dtype)]
    return [*parts, graph.cast(missing, np.float64)] if column.flag else parts


def _circles(graph: Graph, column: Column, days: str) -> list[str]:
    """Sines and cosines of a date; in float32, in which every runtime has them."""
    parts = []
    for name in column.parts:
        periods = graph.op("Div", days, [[PERIODS[name]]])
        turns = graph.op("Mul", graph.op("Sub", periods, graph.op("Floor", periods)), [[2 * np.pi]])
        parts += [graph.cast(graph.op(wave, graph.cast(turns, np.float32)), np.float64) for wave in ("Sin", "Cos")]
    return parts


def _value_means(graph: Graph, column: Column, value: str, dtype: str) -> list[str]:
    """The mean of the target for each of a few values, and that of all for others."""
    if not column.values:
        return []
    assert column.table is not None
    means = column.table.codes[-1, :, :1]
    if dtype == "float32":
        value = graph.cast(graph.cast(value, np.float32), np.float64)
    hit = graph.cast(graph.op("Equal", value, graph.constant([column.values], np.float64)), np.float64)
    away = graph.constant(means[: len(column.values)] - means[-2])
    return [graph.op("Add", graph.op("MatMul", hit, away), means[-2:-1])]


def _category(graph: Graph, column: Column) -> list[str]:
    """Places of the levels; "" is a place of its own, -2, and a level that training had not seen is -1."""
    if column.buckets:
        raise InputError(
            f"column '{column.name}' has too many levels to list, and ONNX cannot hash text as we do: export it"
            " as a numpy script"
        )
    value = graph.input(column.name, str, ["n", 1])
    keys = [*column.levels] if "" in column.levels else [*column.levels, ""]
    places = [*range(len(column.levels)), -2][: len(keys)]
    code = graph.op(
        "LabelEncoder", value, domain=ML, keys_strings=keys, values_int64s=places, default_int64=-1
    )  # fmt: skip
    missing = graph.op("Equal", code, [[-2]])
    if column.kind == TARGET:
        return [_by_target(graph, column, code, missing)]
    numbers = _onehot(graph, column, code) if column.kind == ONEHOT else _ordinal(graph, column, code)
    if column.fill is None or column.kind != ONEHOT:
        fill = np.nan if column.fill is None else column.fill
        numbers = graph.op("Where", missing, graph.constant([[fill]], np.float64), numbers)
    return [numbers, graph.cast(missing, np.float64)] if column.flag else [numbers]


def _onehot(graph: Graph, column: Column, code: str) -> str:
    places = graph.constant(np.arange(len(column.levels))[None], np.int64)
    return graph.cast(graph.op("Equal", code, places), np.float64)


def _by_target(graph: Graph, column: Column, code: str, missing: str) -> str:
    """A row of the table for each level, one for unknown levels and one for a missing value."""
    assert column.table is not None
    codes = column.table.codes[-1].copy()
    if column.fill is None:
        codes[-1] = np.nan
    strange = graph.op("Where", graph.op("Equal", code, [[-1]]), [[column.places]], code)
    place = graph.op("Where", missing, [[column.places + 1]], strange)
    found = graph.op("Gather", codes, place, axis=0)  # (n, 1, width)
    return graph.op("Squeeze", found, [1])


def _ordinal(graph: Graph, column: Column, code: str) -> str:
    strange = graph.op("Equal", code, [[-1]])
    place = graph.op("Where", strange, [[len(column.levels)]], code)
    return graph.cast(place, np.float64)


# -- scaling


def _scaled(graph: Graph, model: ExportedMap, X: str) -> str:
    """Scaled inputs in the type that the map wants."""
    s = model.scaling
    X = graph.op("Min", graph.op("Max", X, s.low[None]), s.high[None])
    Z = graph.op("Mul", graph.op("Sub", X, s.centre[None]), s.factor[None])
    curves = {int(j): _log_curve(graph, model, X, k) for k, j in enumerate(s.log_columns)}
    curves |= {int(j): _rank_curve(graph, model, X, k) for k, j in enumerate(s.rank_columns)}
    if curves:
        Z = graph.op("Concat", *_with_curves(graph, Z, curves, s.n_inputs), axis=1)
    if len(s.rotation):
        Z = graph.op("MatMul", Z, s.rotation)
    return Z if model.double else graph.cast(Z, np.float32)


def _with_curves(graph: Graph, Z: str, curves: dict[int, str], d: int) -> list[str]:
    """Columns in order: runs of Z between those that a curve replaces."""
    parts, start = [], 0
    for j in [*sorted(curves), d]:
        if start < j:
            parts.append(graph.columns(Z, start, j))
        if j < d:
            parts.append(curves[j])
        start = j + 1
    return parts


def _log_curve(graph: Graph, model: ExportedMap, X: str, k: int) -> str:
    s = model.scaling
    j = int(s.log_columns[k])
    x = graph.columns(X, j, j + 1)
    grown = graph.op("Mul", graph.op("Abs", x), [[s.log_rates[k]]])
    log = graph.op("Mul", graph.op("Sign", x), graph.op("Log", graph.op("Add", grown, [[1.0]])))
    return graph.op("Mul", graph.op("Sub", log, [[s.centre[j]]]), [[s.factor[j]]])


def _rank_curve(graph: Graph, model: ExportedMap, X: str, k: int) -> str:
    """Piecewise linear: the first level, and for each piece its rise times the share of it that lies below x."""
    s = model.scaling
    a, b = s.rank_offsets[k : k + 2]
    knots, levels, j = s.knots[a:b], s.levels[a:b], int(s.rank_columns[k])
    if len(knots) < 2:
        x = graph.columns(X, j, j + 1)
        return graph.op("Add", graph.op("Mul", x, [[0.0]]), [[levels[0]]])
    x = graph.op("Sub", graph.columns(X, j, j + 1), knots[None, :-1])
    inside = graph.op("Min", graph.op("Max", x, [[0.0]]), np.diff(knots)[None])
    slopes = graph.constant((np.diff(levels) / np.diff(knots))[:, None])
    return graph.op("Add", graph.op("MatMul", inside, slopes), [[levels[0]]])


# -- classes


def _bent(graph: Graph, model: ExportedModel, scores: str) -> str:
    if not model.bend:
        return scores
    middle = scores
    if len(model.classes) > 2:
        middle = graph.op("Sub", graph.op("Mul", scores, [[2.0]]), [[1.0]])
    near = graph.op("Min", graph.op("Max", middle, [[-FARTHEST]]), [[FARTHEST]])
    cube = graph.op("Mul", graph.op("Mul", near, near), near)
    return graph.op("Add", scores, graph.op("Mul", cube, [[model.bend]]))


def _classes(graph: Graph, model: ExportedModel, scores: str) -> None:
    assert model.slope is not None
    assert model.shift is not None
    logits = graph.op("Add", graph.op("MatMul", _bent(graph, model, scores), model.slope), model.shift[None])
    if len(model.classes) == 2:
        logits = graph.op("Concat", graph.op("Mul", logits, [[0.0]]), logits, axis=1)
    labels = np.asarray(model.classes)
    decided = logits
    if model.threshold != 0.5:
        decided = graph.op("Sub", logits, [[0.0, np.log(model.threshold / (1 - model.threshold))]])
    place = graph.op("ArgMax", decided, axis=1, keepdims=0)
    kind = str if labels.dtype.kind == "U" else labels.dtype
    graph.output(graph.op("Gather", labels, place), "label", kind, ["n"])
    graph.output(graph.op("Softmax", logits, axis=1), "probabilities", np.float64, ["n", len(labels)])
