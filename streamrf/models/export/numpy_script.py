"""The model as a page of numpy and a file of arrays: no streamrf needed to predict, and nothing hidden."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from streamrf.data.columns import PERIODS, Columns
from streamrf.data.readers.csv import NULLS
from streamrf.models.export import LOOKED_UP, TREES, ExportedMap, ExportedModel
from streamrf.models.export.numpy_maps import map_text, of_member
from streamrf.statistics.scores import FARTHEST
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
        if column.get("values"):
            place, codes = {v: i for i, v in enumerate(column["values"])}, A[f"levels{number_of_column}"]
            places = [place.get(v, -2) for v in part[:, 0].astype(COLUMNS["dtype"]).tolist()]
            part = np.hstack([part, codes[places, :1]])
        parts += [part, *(each[:, None] for each in circles(part[:, 0], column.get("periods", ())))]
        parts += [gone[:, None].astype(float)] if column.get("flag") else []
    return np.hstack(parts).astype(COLUMNS["dtype"])
'''

SCALE = '''

def scale(X):
    """The inputs as the features want them."""
    X = np.clip(X, A["lowest"], A["highest"])
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

NUMBERS = '''

def predict(X):
    """(n, outputs) predicted numbers of rows {rows}, a block of rows at a time."""
    X = np.asarray({raw}, np.float64)
    return np.vstack([{total} for i in range(0, len(X), 512)] or [np.empty((0, {outputs}))])
'''
CLASSES = '''
CLASSES = np.array(json.loads(str(A["classes"])))


def predict_proba(X):
    """(n, classes) probabilities of rows {rows}, a block of rows at a time."""
    X = np.asarray({raw}, np.float64)
    s = np.vstack([{total} for i in range(0, len(X), 512)] or [np.empty((0, {outputs}))])
{bend}    logits = s @ A["slope"] + A["shift"]
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
    names = model.columns.names if model.columns else list(model.feature_names or ())
    arrays = {"names": np.array(json.dumps(names))}
    for number, each in enumerate(model.maps):
        prefix = "" if model.shares is None else f"member{number}."
        arrays |= {f"{prefix}{name}": array for name, array in _map_arrays(each).items()}
    if model.shares is not None and model.intercept is not None:
        arrays |= {"shares": model.shares, "intercept": model.intercept}
    if model.columns:
        arrays |= _coding(model.columns)
    if model.classes:
        assert model.slope is not None
        assert model.shift is not None
        arrays |= {"classes": np.array(json.dumps(list(model.classes))), "slope": model.slope, "shift": model.shift}
    return arrays


def _map_arrays(map: ExportedMap) -> dict[str, np.ndarray]:
    scaling = map.scaling
    arrays: dict[str, np.ndarray] = {
        "centre": scaling.centre, "factor": scaling.factor, "lowest": scaling.low, "highest": scaling.high,
        "intercept": map.intercept, **map.arrays,
        "coefficients": map.tables if map.kind in LOOKED_UP else map.coefficients,
    }  # fmt: skip
    if map.kind == TREES:
        arrays["node_values"] = map.node_tables
    curves = {
        "log_columns": ("log_columns", "log_rates"),
        "rank_columns": ("rank_columns", "rank_offsets", "knots", "levels"),
        "rotation": ("rotation",),
    }
    for part, members in curves.items():
        if len(getattr(scaling, part)):
            arrays |= {name: getattr(scaling, name) for name in members}
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
    texts = [_scale(each) + map_text(each) for each in model.maps]
    parts += texts if model.shares is None else [of_member(text, number) for number, text in enumerate(texts)]
    total = _total(None if model.shares is None else len(texts))
    last = CLASSES if model.classes else NUMBERS
    decide = "p.argmax(axis=-1)" if model.threshold == 0.5 else f"(p[..., 1] > {model.threshold!r}).astype(int)"
    middle = "s" if len(model.classes) == 2 else "2.0 * s - 1.0"
    bend = f"    s = s + {model.bend!r} * np.clip({middle}, -{FARTHEST}, {FARTHEST}) ** 3\n" if model.bend else ""
    raw = "code(X)" if coded else "X"
    parts.append(last.format(rows=rows, raw=raw, outputs=model.outputs, decide=decide, bend=bend, total=total))
    parts.append(_main(model))
    return "".join(parts)


def _total(members: int | None) -> str:
    """The scores of a block of rows."""
    if members is None:
        return "scores(scale(X[i : i + 512]))"
    parts = (f'A["shares"][{n}] * scores{n}(scale{n}(X[i : i + 512]))' for n in range(members))
    return f'{" + ".join(parts)} + A["intercept"]'


def _scale(map: ExportedMap) -> str:
    scaling = map.scaling
    parts = [SCALE]
    parts += [LOGS] if len(scaling.log_columns) else []
    parts += [RANKS] if len(scaling.rank_columns) else []
    parts += [ROTATION] if len(scaling.rotation) else []
    return "".join([*parts, SCALED.format(number="float64" if map.double else "float32")])


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
        outputs = model.outputs
        header = repr(["prediction"] if outputs == 1 else [f"prediction_{k}" for k in range(outputs)])
        lines = "predict(table)"
    return MAIN.format(table=table, header=header, lines=lines)
