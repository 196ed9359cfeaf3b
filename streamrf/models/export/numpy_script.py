"""The model as a page of numpy and a file of arrays: no streamrf needed to predict, and nothing hidden."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from streamrf.data.columns import PERIODS, Columns
from streamrf.data.readers.csv import NULLS
from streamrf.models.export import BINNING, DENSE, TURN, ExportedModel
from streamrf.support.errors import InputError
from streamrf.support.storage.files import atomic_write, refuse_existing

HEAD = '''"""Predictions of a streamrf model in plain numpy; {data} beside this file holds its numbers.

    python {name} rows.csv > predictions.csv     (a line of names first; "-" for standard input)
    from {stem} import predict                   {usage}
"""

import csv
import json
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

A = np.load(Path(__file__).with_name("{data}"), allow_pickle=False)
A = {{name: A[name] for name in A.files}}
NAMES = json.loads(str(A["names"]))
'''

CODE = '''
COLUMNS = json.loads(str(A["columns"]))


def level(value, of):
    """What a category is looked up by: True is true, 1.0 is 1, and text a number where training saw numbers."""
    if of == "bool" and isinstance(value, str):
        return {"1": "true", "0": "false"}.get(value, value.lower())
    if of in ("int", "float") and isinstance(value, str):
        try:
            value = float(value) if set(value) & set(".enEN") else int(value)
        except ValueError:
            return value
    if isinstance(value, (bool, np.bool_)):
        return str(value).lower()
    if isinstance(value, (float, np.floating)):
        value = None if not np.isfinite(value) else int(value) if value.is_integer() else float(value)
    return value if of or value is None else str(value)


def number(value):
    return float({"true": 1, "false": 0}.get(value.lower(), value) if isinstance(value, str) else value)


def bucket(text, buckets):
    """Where a level stands that is not listed: a hash of its text."""
    h = 0xCBF29CE484222325
    for byte in str(text).encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    return (h ^ h >> 31) % buckets


def circles(days, periods):
    turns = [2 * np.pi * (days / p - np.floor(days / p)) for p in periods]
    return [np.rint(wave(t) * 2.0**20) / 2.0**20 for t in turns for wave in (np.sin, np.cos)]


def code(table):
    """Raw columns, by name, as numbers: categories, missing values; dates are days since 1970."""
    parts = []
    for number_of_column, column in enumerate(COLUMNS["columns"]):
        raw = np.asarray(table[column["name"]], object)
        fill, levels, of = column.get("fill"), column.get("levels", ()), column.get("of")
        buckets, is_category = column.get("buckets", 0), column["kind"] in ("onehot", "ordinal", "target")
        raw = [level(v, of) for v in raw] if is_category else raw
        gone = np.array([v is None or v != v or (v == "" and "" not in levels) for v in raw])
        if column["kind"] == "target":
            place, codes = {level(text, of): i for i, text in enumerate(levels)}, A[f"levels{number_of_column}"]
            places = [bucket(v, buckets) if buckets else place.get(v, -2) for v in raw]
            part, fill = codes[np.where(gone, -1, places)], None if fill is None else codes[-1]
        elif is_category:
            place = {level(text, of): i for i, text in enumerate(levels)}
            codes = np.array([-1 if g else place.get(v, -1) for v, g in zip(raw, gone)])
            one_hot = (codes[:, None] == np.arange(len(levels))).astype(float)
            ordinal = np.where(codes < 0, len(levels), codes).astype(float)[:, None]
            part = one_hot if column["kind"] == "onehot" else ordinal
            fill = None if fill is None else (0.0 if column["kind"] == "onehot" else fill)
        elif column["kind"] == "date":
            days = [np.datetime64("NaT") if g else np.datetime64(v, "us") for v, g in zip(raw, gone)]
            part = (np.array(days, "datetime64[us]").astype(np.int64) / 86_400e6)[:, None]
        else:
            part = np.array([np.nan if g else number(v) for v, g in zip(raw, gone)])[:, None]
            gone = ~np.isfinite(part[:, 0]) if fill is not None else gone
        part[gone] = np.nan if fill is None else fill
        parts += [part, *(each[:, None] for each in circles(part[:, 0], column.get("periods", ())))]
        parts += [gone[:, None].astype(float)] if column.get("flag") else []
    return np.hstack(parts).astype(COLUMNS["dtype"])
'''

SCALE = '''

def scale(X):
    """The inputs as the features want them."""
    Z = (X - A["centre"]) * A["factor"]
'''
LOGS = """    for j, rate in zip(A["log_columns"], A["log_rates"]):
        logs = np.sign(X[:, j]) * np.log1p(np.abs(X[:, j]) * rate)
        Z[:, j] = (logs - A["centre"][j]) * A["factor"][j]
"""
RANKS = """    for k, j in enumerate(A["rank_columns"]):
        a, b = A["rank_offsets"][k : k + 2]
        Z[:, j] = np.interp(X[:, j], A["knots"][a:b], A["levels"][a:b])
"""
ROTATION = """    Z = Z @ A["rotation"]
"""
SCALED = """    return Z.astype(np.{number})
"""

DENSE_MAP = '''

def turns(Z):
    """b + x'w in turns, column by column{as_kernel}."""
    t = np.broadcast_to(A["phases"], (len(Z), A["W"].shape[1]))
    for x, w in zip(Z.T[:, :, None].astype(np.float64), A["W"].astype(np.float64)):
        t = (x * w + t).astype(np.{number})
    return t
'''
STRUCTURED_MAP = '''

def hadamard(x):
    """The Hadamard transform of each row."""
    n, m = x.shape
    left = m
    while left >= 4:
        x0, x1, x2, x3 = x.reshape(n, 4, m // 4).transpose(1, 0, 2)
        a, b, c, d = x0 + x1, x0 - x1, x2 + x3, x2 - x3
        x = np.stack([a + c, b + d, a - c, b - d], axis=2).reshape(n, m)
        left //= 4
    if left == 2:
        low, high = x.reshape(n, 2, m // 2).transpose(1, 0, 2)
        x = np.stack([low + high, low - high], axis=2).reshape(n, m)
    return x


def turns(Z):
    """b + x'w in turns; w is a product of diagonals and Hadamard matrices."""
    blocks = []
    for diagonals, permutation in zip(A["diagonals"], A["permutations"]):
        x = np.zeros((len(Z), len(diagonals[0])), np.float32)
        x[:, : Z.shape[1]] = Z * diagonals[0][: Z.shape[1]]
        x = hadamard(x)
        for stage, diagonal in enumerate(diagonals[1:]):
            x = hadamard((x[:, permutation] if stage == 0 and len(permutation) else x) * diagonal)
        blocks.append(x)
    projected = np.hstack(blocks)[:, : len(A["stretch"])] * A["stretch"]
    repeats = len(A["phases"]) // len(A["stretch"])
    return np.tile(projected, (1, repeats)) * np.float32({turn!r}) + A["phases"]
'''
COSINES = '''

def features(Z):
    """cos(2 pi t){rounding}, by the polynomial and the roundings of the model's own kernel."""
    t = turns(Z)
    t = t - np.rint(t)
    g = np.{number}(0.25) - np.abs(t)
    square, series = g * g, np.{number}({last!r})
    for term in {terms!r}:
        series = {step}
    return {result}


def scores(Z):
    return features(Z).astype(np.float64) @ A["coefficients"] + A["intercept"]
'''
BINNING_MAP = '''

def scores(Z):
    """Each grid puts a row in a cell, and a hash of the cell says where in the grid's table its score stands."""
    total = np.tile(A["intercept"], (len(Z), 1))
    shift, mix = np.uint64(64 - A["bits"]), np.uint64(0x9E3779B97F4A7C15)
    for p, table in enumerate(A["coefficients"]):
        cells = np.clip(np.floor((Z - A["shifts"][p]) * A["inverses"][p]), -(2.0**30), 2.0**30)
        cells = cells.astype(np.int32).astype(np.uint32)
        low, high = ((cells * A[half][p]).sum(axis=1, dtype=np.uint32).astype(np.uint64) for half in ("low", "high"))
        total += table[(((high << np.uint64(32)) | low) * mix) >> shift]
    return total
'''

NUMBERS = '''

def predict(X):
    """(n, outputs) predicted numbers of rows {rows}, a block of rows at a time."""
    X = np.asarray({raw}, np.float64)
    return np.vstack([scores(scale(X[i : i + 512])) for i in range(0, len(X), 512)] or [np.empty((0, {outputs}))])
'''
CLASSES = '''
CLASSES = np.array(json.loads(str(A["classes"])))


def predict_proba(X):
    """(n, classes) probabilities of rows {rows}, a block of rows at a time."""
    X = np.asarray({raw}, np.float64)
    s = np.vstack([scores(scale(X[i : i + 512])) for i in range(0, len(X), 512)] or [np.empty((0, {outputs}))])
    logits = s @ A["slope"] + A["shift"]
    if len(CLASSES) == 2:
        logits = np.hstack([np.zeros_like(logits), logits])
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


def decide(p):
    """Positions of the classes that probabilities p (..., classes) stand for."""
    return {decide}


def predict(X):
    return CLASSES[decide(predict_proba(X))]
'''

MAIN = """

def main():
    file = sys.stdin if sys.argv[1] == "-" else open(sys.argv[1], newline="")
    rows = list(csv.DictReader(file))
    {table}
    writer = csv.writer(sys.stdout)
    writer.writerow({header})
    writer.writerows({lines})


if __name__ == "__main__":
    main()
"""


def write_script(model: ExportedModel, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write ``path`` (.py) and the arrays beside it (.npz); the path of the arrays."""
    script = Path(path)
    if script.suffix != ".py" or not script.stem.isidentifier():
        raise InputError(f"{path}: the name must be such that Python can import it, as predict_price.py is")
    data = script.with_suffix(".npz")
    if not overwrite:
        refuse_existing(script)
        refuse_existing(data)
    buffer, arrays = io.BytesIO(), cast("dict[str, Any]", _arrays(model))  # savez has other arguments too
    np.savez(buffer, **arrays)
    atomic_write(data, buffer.getvalue())
    atomic_write(script, script_text(model, script.name).encode())
    return data


def _arrays(model: ExportedModel) -> dict[str, np.ndarray]:
    scaling = model.scaling
    names = model.columns.names if model.columns else list(model.feature_names or ())
    arrays: dict[str, np.ndarray] = {
        "names": np.array(json.dumps(names)), "centre": scaling.centre, "factor": scaling.factor,
        "intercept": model.intercept, **model.arrays,
        "coefficients": model.tables if model.kind == BINNING else model.coefficients,
    }  # fmt: skip
    curves = {
        "log_columns": ("log_columns", "log_rates"),
        "rank_columns": ("rank_columns", "rank_offsets", "knots", "levels"),
        "rotation": ("rotation",),
    }
    for part, members in curves.items():
        if len(getattr(scaling, part)):
            arrays |= {name: getattr(scaling, name) for name in members}
    if model.columns:
        arrays |= _coding(model.columns)
    if model.classes:
        assert model.slope is not None
        assert model.shift is not None
        arrays |= {"classes": np.array(json.dumps(list(model.classes))), "slope": model.slope, "shift": model.shift}
    return arrays


def _coding(columns: Columns) -> dict[str, np.ndarray]:
    """The coding of columns, with the numbers of levels as arrays of their own."""
    entries, arrays = [], {}
    for i, column in enumerate(columns.columns):
        entry = column.to_json() | {"periods": [PERIODS[part] for part in column.parts]}
        entry.pop("table", None)
        if column.table is not None:
            arrays[f"levels{i}"] = column.table.codes[-1]
        entries.append(entry)
    return {"columns": np.array(json.dumps({"dtype": columns.dtype, "columns": entries})), **arrays}


def script_text(model: ExportedModel, name: str) -> str:
    """The whole program, with only the parts that this model needs."""
    coded = model.columns is not None
    rows = "of raw columns by name" if coded else f"(n, {model.n_inputs})"
    usage = "predict({name: values, ...})" if coded else "predict(X)"
    parts = [HEAD.format(data=Path(name).with_suffix(".npz").name, name=name, stem=Path(name).stem, usage=usage)]
    parts += [CODE] if coded else []
    parts += [_scale(model), _map(model)]
    last = CLASSES if model.classes else NUMBERS
    decide = "p.argmax(axis=-1)" if model.threshold == 0.5 else f"(p[..., 1] > {model.threshold!r}).astype(int)"
    raw = "code(X)" if coded else "X"
    parts.append(last.format(rows=rows, raw=raw, outputs=len(model.intercept), decide=decide))
    parts.append(_main(model))
    return "".join(parts)


def _scale(model: ExportedModel) -> str:
    scaling = model.scaling
    parts = [SCALE]
    parts += [LOGS] if len(scaling.log_columns) else []
    parts += [RANKS] if len(scaling.rank_columns) else []
    parts += [ROTATION] if len(scaling.rotation) else []
    return "".join([*parts, SCALED.format(number=_number(model))])


def _number(model: ExportedModel) -> str:
    return "float64" if model.double else "float32"


def _map(model: ExportedModel) -> str:
    if model.kind == BINNING:
        return BINNING_MAP
    number = _number(model)
    fused = model.kind == DENSE and not model.double
    step = "(series * square.astype(np.float64) + term).astype(np.float32)"
    plain = f"series * square + np.{number}(term)"
    *terms, last = model.sine
    rounded = f"np.rint(series * g * np.{number}({model.scale}))"
    first = DENSE_MAP if model.kind == DENSE else STRUCTURED_MAP
    as_kernel = ", each step rounded once as a fused multiply-add is" if fused else ""
    return first.format(number=number, as_kernel=as_kernel, turn=float(TURN)) + COSINES.format(
        rounding=f" times {model.scale}, rounded" if model.rounded else "", number=number, last=last,
        terms=tuple(reversed(terms)), step=step if fused else plain,
        result=rounded if model.rounded else "series * g",
    )  # fmt: skip


def _main(model: ExportedModel) -> str:
    if model.columns:
        table = (
            f"nulls = {NULLS!r}\n"
            "    table = {name: [row[name].strip() for row in rows] for name in NAMES}\n"
            "    table = {name: [None if v in nulls else v for v in values] for name, values in table.items()}"
        )
    else:
        table = "table = [[float(row[name]) for name in NAMES or row] for row in rows]"
    if model.classes:
        header = '["prediction", *(f"p_{label}" for label in CLASSES)]'
        lines = "[CLASSES[decide(p)], *p] for p in predict_proba(table)"
    else:
        outputs = len(model.intercept)
        header = repr(["prediction"] if outputs == 1 else [f"prediction_{k}" for k in range(outputs)])
        lines = "predict(table)"
    return MAIN.format(table=table, header=header, lines=lines)
