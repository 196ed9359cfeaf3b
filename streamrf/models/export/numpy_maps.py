"""Feature maps as text: numpy that gives the scores of scaled inputs from arrays ``A``."""

from __future__ import annotations

import re

from streamrf.models.export import BINNING, DENSE, LANDMARKS, TREES, TURN, ExportedMap

NAMES = ("scale", "turns", "hadamard", "features", "scores")  # of functions that a member of a blend has its own of

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
        halves = (A["low"][p], A["high"][p])
        low, high = ((cells * half).sum(axis=1, dtype=np.uint32).astype(np.uint64) for half in halves)
        total += table[(((high << np.uint64(32)) | low) * mix) >> shift]
    return total
'''
TREES_MAP = '''

def scores(Z):
    """Each cut of a symmetric tree says one bit of the number of a leaf; in others a node says which is next, and
    leaves are numbered after the nodes. The values of a row's leaves are added up. Levels of categories have places."""
    Z = np.hstack([Z, np.minimum((Z > A["on"]) @ A["places"], 255)])
    total = np.tile(A["intercept"], (len(Z), 1))
    for columns, thresholds, values in zip(A["columns"], A["thresholds"], A["coefficients"]):
        leaf = np.zeros(len(Z), np.int64)
        for column, threshold in zip(columns, thresholds):
            leaf = 2 * leaf + (Z[:, column] > threshold)
        total += values[leaf]
    inner, rows = A["node_columns"].shape[1], np.arange(len(Z))
    for columns, thresholds, children, values in zip(
        A["node_columns"], A["node_thresholds"], A["children"], A["node_values"]
    ):
        node = np.zeros(len(Z), np.int64)
        for _ in range(A["depth"]):
            at = np.minimum(node, inner - 1)
            beyond = Z[rows, columns[at]] > thresholds[at]
            node = np.where(node < inner, children[at, beyond.astype(np.int64)], node)
        total += values[node - inner]
    return total
'''
LANDMARKS_MAP = '''

def features(Z):
    """Values of the kernel at the landmarks{rounding}: a function of distances in the metric of the model."""
    Z = Z.astype(np.float64)
    Z = (Z * A["metric"] if A["metric"].ndim == 1 else Z @ A["metric"]).astype(np.{number}).astype(np.float64)
    s = np.zeros((len(Z), len(A["landmarks"])))
    for x, c in zip(Z.T[:, :, None], A["landmarks"].T):
        gap = x - c
        s += {step}
    factor, a, b = A["profile"]
    s = factor * s
    s = {root}
    values = (1 + s * (a + s * b)) * np.exp(-s)
    return {result}


def scores(Z):
    return features(Z) @ A["coefficients"] + A["intercept"]
'''


def map_text(model: ExportedMap) -> str:
    """Functions that end with ``scores``."""
    number = "float64" if model.double else "float32"
    if model.kind == BINNING:
        return BINNING_MAP
    if model.kind == TREES:
        return TREES_MAP
    if model.kind == LANDMARKS:
        rounded = f" times {model.scale}, rounded" if model.rounded else ""
        step = "np.abs(gap)" if model.arrays["norm"] == 1 else "gap * gap"
        told = {"step": step, "root": "np.sqrt(s)" if model.arrays["root"] else "s", "number": number}
        result = f"np.rint(values * {model.scale})" if model.rounded else "values"
        return LANDMARKS_MAP.format(rounding=rounded, result=result, **told)
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


def of_member(text: str, number: int) -> str:
    """The functions and arrays of one member of a blend, named apart from those of the others."""
    for name in NAMES:
        text = re.sub(rf"\b{name}\(", f"{name}{number}(", text)
    return re.sub(r'A\["(\w+)"\]', rf'A["member{number}.\1"]', text)
