"""Building an ONNX graph, and feature maps in it.

The roundings of our kernels are written out one by one, so rounded features are the same integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from streamrf.features.binning.map import GOLDEN
from streamrf.models.export import BINNING, DENSE, LANDMARKS, TREES, TURN, ExportedMap
from streamrf.support.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    import onnx

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
MAX_BYTES = 2_000_000_000  # protobuf's limit, nearly


def onnx_package() -> ModuleType:
    """The onnx package, or how to get it."""
    try:
        import onnx
    except ImportError as error:
        raise MissingDependencyError(
            "writing ONNX needs a package that is missing: pip install 'streamrf[onnx]'"
        ) from error
    return onnx


def free_prefix(names: Iterable[str]) -> str:
    """One that no name begins with."""
    taken, prefix = tuple(names), "s_"
    while any(name.startswith(prefix) for name in taken):
        prefix += "_"
    return prefix


class Graph:
    """Nodes and constants as they are added. What is inside has names that begin with ``prefix``, as no input's may."""

    def __init__(self, prefix: str) -> None:
        self._onnx, self._prefix = onnx_package(), prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._bytes = 0

    def input(self, name: str, dtype: DTypeLike, shape: list[int | str]) -> str:
        """A column as an input of its name; one without a name gets one, as ONNX knows no empty names."""
        assert not name.startswith(self._prefix)
        name = name or f"{self._prefix}unnamed"
        self.inputs.append(self._onnx.helper.make_tensor_value_info(name, self.type_of(dtype), shape))
        return name

    def output(self, value: str, name: str, dtype: DTypeLike, shape: list[int | str]) -> None:
        """A result; with a line after its name where an input is called that."""
        while any(one.name == name for one in self.inputs):
            name += "_"
        self.nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(self._onnx.helper.make_tensor_value_info(name, self.type_of(dtype), shape))

    def type_of(self, dtype: DTypeLike) -> int:
        kinds = self._onnx.TensorProto
        if dtype is str:
            return int(kinds.STRING)
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def constant(self, value: ArrayLike, dtype: DTypeLike | None = None) -> str:
        """An array in the file."""
        array = np.asarray(value, dtype)
        self._bytes += array.nbytes
        if self._bytes > MAX_BYTES:
            raise InputError(
                "the model is larger than the 2 GB that an ONNX file may have: export it as a numpy script"
            )
        name = f"{self._prefix}c{len(self.constants)}"
        if array.dtype.kind == "U":
            texts = [text.encode() for text in array.ravel().tolist()]
            tensor = self._onnx.helper.make_tensor(name, self._onnx.TensorProto.STRING, array.shape, texts)
        else:
            tensor = self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.constants.append(tensor)
        return name

    def op(self, kind: str, *inputs: str | ArrayLike, domain: str = "", **attributes: object) -> str:
        """One operation with one result. An input is the name of a value, or a constant."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        name = f"{self._prefix}v{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, names, [name], domain=domain, **attributes))
        return name

    def columns(self, X: str, start: int, stop: int) -> str:
        """Some columns of a matrix."""
        return self.op("Slice", X, [start], [stop], [1])

    def rows_of(self, X: str, row: np.ndarray) -> str:
        """A matrix with this row as often as X has rows: their number is not known yet."""
        zeros = self.op("Mul", self.cast(self.columns(X, 0, 1), row.dtype), np.zeros((1, 1), row.dtype))
        return self.op("Add", zeros, row[None])

    def cast(self, value: str, dtype: DTypeLike) -> str:
        return self.op("Cast", value, to=self.type_of(dtype))

    def model(self, description: str) -> onnx.ModelProto:
        helper = self._onnx.helper
        graph = helper.make_graph(
            self.nodes, "streamrf", self.inputs, self.outputs, self.constants, doc_string=description
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="streamrf")
        model.ir_version = IR_VERSION
        return model

    def scan(self, state: str, scanned: list[str], types: Sequence[DTypeLike], step: Callable[..., str]) -> str:
        """The last state of a loop over the first axis of some arrays.

        ``step`` writes the body: from a graph, the state and a slice of each array to the next state. ``types`` are
        those of the state and of the slices.
        """
        helper = self._onnx.helper
        body = Graph(prefix=f"{self._prefix}b{len(self.nodes)}_")
        names = [f"{body._prefix}in{i}" for i in range(len(types))]
        kinds = [self.type_of(dtype) for dtype in types]
        inputs = [helper.make_tensor_value_info(n, kind, None) for n, kind in zip(names, kinds, strict=True)]
        result = [helper.make_tensor_value_info(step(body, *names), kinds[0], None)]
        inner = helper.make_graph(body.nodes, f"{body._prefix}step", inputs, result, body.constants)
        return self.op("Scan", state, *scanned, body=inner, num_scan_inputs=len(scanned))


FARTHEST = 2.0**30  # cells beyond are one cell
WORD, HALF = 1 << 32, 1 << 16
MIX_LOW, MIX_HIGH = GOLDEN % WORD, GOLDEN // WORD


def scores(graph: Graph, model: ExportedMap, Z: str) -> str:
    """(n, outputs) scores of scaled inputs."""
    if model.kind == BINNING:
        total = _binned(graph, model, Z)
    elif model.kind == TREES:
        total = _grown(graph, model, Z)
    elif model.kind == LANDMARKS:
        total = graph.op("MatMul", _kernel_values(graph, model, Z), model.coefficients)
    else:
        features = graph.cast(_cosines(graph, model, _turns(graph, model, Z)), np.float64)
        total = graph.op("MatMul", features, model.coefficients)
    return graph.op("Add", total, model.intercept[None])


# -- Fourier features


def _turns(graph: Graph, model: ExportedMap, Z: str) -> str:
    arrays = model.arrays
    if model.kind != DENSE:
        return _structured(graph, model, Z)
    if model.double:
        return graph.op("Add", graph.op("MatMul", Z, arrays["W"]), arrays["phases"][None])
    wide = graph.cast(Z, np.float64)
    rows = graph.op("Unsqueeze", graph.op("Transpose", wide, perm=[1, 0]), [2])
    start = graph.rows_of(Z, arrays["phases"])
    weights = graph.cast(graph.constant(arrays["W"]), np.float64)
    return graph.scan(start, [rows, weights], [np.float32, np.float64, np.float64], _multiply_add)


def _multiply_add(body: Graph, total: str, x: str, w: str) -> str:
    """``total + x w`` rounded once, as a fused multiply-add is: a product of two float32 is exact in float64."""
    product = body.op("Mul", x, w)
    return body.cast(body.op("Add", product, body.cast(total, np.float64)), np.float32)


def _structured(graph: Graph, model: ExportedMap, Z: str) -> str:
    """Products of diagonals and Hadamard matrices, in float32 and in the order of our kernel."""
    arrays = model.arrays
    length, d = arrays["diagonals"].shape[2], model.n_inputs
    padded = graph.op("Pad", Z, [0, 0, 0, length - d])
    blocks = []
    for diagonals, permutation in zip(arrays["diagonals"], arrays["permutations"], strict=True):
        x = padded
        for stage, diagonal in enumerate(diagonals):
            if stage == 1 and len(permutation):
                x = graph.op("Gather", x, permutation, axis=1)
            x = _hadamard(graph, graph.op("Mul", x, diagonal[None]), length)
        blocks.append(x)
    F = len(arrays["stretch"])
    projected = blocks[0] if len(blocks) == 1 else graph.op("Concat", *blocks, axis=1)
    projected = graph.op("Mul", graph.columns(projected, 0, F), arrays["stretch"][None])
    repeats = len(arrays["phases"]) // F
    if repeats > 1:
        projected = graph.op("Concat", *[projected] * repeats, axis=1)
    turned = graph.op("Mul", projected, graph.constant([[TURN]], np.float32))
    return graph.op("Add", turned, arrays["phases"][None])


def _hadamard(graph: Graph, x: str, length: int) -> str:
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
    return [graph.columns(x, i * step, (i + 1) * step) for i in range(count)]


def _interleaved(graph: Graph, parts: list[str], length: int) -> str:
    stacked = graph.op("Concat", *(graph.op("Unsqueeze", part, [2]) for part in parts), axis=2)
    return graph.op("Reshape", stacked, [-1, length])


def _cosines(graph: Graph, model: ExportedMap, t: str) -> str:
    """cos(2 pi t) by our polynomial, rounded to integers where the model's features are."""
    number = np.float64 if model.double else np.float32
    fused = model.kind == DENSE and not model.double
    t = graph.op("Sub", t, graph.op("Round", t))
    g = graph.op("Sub", graph.constant([[0.25]], number), graph.op("Abs", t))
    square, (*terms, last) = graph.op("Mul", g, g), model.sine
    series = graph.constant([[last]], number)
    for term in reversed(terms):
        series = _fused(graph, series, square, term) if fused else _plain(graph, series, square, term, number)
    value = graph.op("Mul", series, g)
    if not model.rounded:
        return value
    return graph.op("Round", graph.op("Mul", value, graph.constant([[model.scale]], number)))


def _plain(graph: Graph, series: str, square: str, term: float, number: DTypeLike) -> str:
    return graph.op("Add", graph.op("Mul", series, square), graph.constant([[term]], number))


def _fused(graph: Graph, series: str, square: str, term: float) -> str:
    product = graph.op("Mul", graph.cast(series, np.float64), graph.cast(square, np.float64))
    return graph.cast(graph.op("Add", product, graph.constant([[term]], np.float64)), np.float32)


# -- landmarks


def _kernel_values(graph: Graph, model: ExportedMap, Z: str) -> str:
    """Of inputs and landmarks, in float64 from distances in the metric of the model."""
    arrays, number = model.arrays, np.float64 if model.double else np.float32
    wide, diagonal = graph.cast(Z, np.float64), arrays["metric"].ndim == 1
    moved = graph.op("Mul", wide, arrays["metric"][None]) if diagonal else graph.op("MatMul", wide, arrays["metric"])
    moved = graph.cast(graph.cast(moved, number), np.float64)
    rows = graph.op("Unsqueeze", graph.op("Transpose", moved, perm=[1, 0]), [2])
    start, landmarks = graph.rows_of(moved, np.zeros(len(arrays["landmarks"]))), arrays["landmarks"].T
    types, (factor, a, b) = [np.float64] * 3, arrays["profile"]
    s = graph.scan(start, [rows, graph.constant(landmarks)], types, _absolute if arrays["norm"] == 1 else _squared)
    s = graph.op("Mul", s, [[factor]])
    s = graph.op("Sqrt", s) if arrays["root"] else s
    grown = graph.op("Add", graph.op("Mul", graph.op("Add", graph.op("Mul", s, [[b]]), [[a]]), s), [[1.0]])
    values = graph.op("Mul", grown, graph.op("Exp", graph.op("Neg", s)))
    if not model.rounded:
        return values
    return graph.op("Round", graph.op("Mul", values, [[float(model.scale)]]))


def _squared(body: Graph, total: str, x: str, c: str) -> str:
    gap = body.op("Sub", x, c)
    return body.op("Add", total, body.op("Mul", gap, gap))


def _absolute(body: Graph, total: str, x: str, c: str) -> str:
    return body.op("Add", total, body.op("Abs", body.op("Sub", x, c)))


# -- trees


def _grown(graph: Graph, model: ExportedMap, Z: str) -> str:
    """A look-up in the values of each tree; the places of levels come after the inputs."""
    arrays = model.arrays
    if arrays["places"].shape[1]:
        on = graph.cast(graph.op("Greater", Z, arrays["on"][None]), np.float32)
        places = graph.op("Min", graph.op("MatMul", on, arrays["places"]), np.float32(255))
        Z = graph.op("Concat", Z, places, axis=1)
    total = graph.rows_of(Z, np.zeros(len(model.intercept)))
    if len(arrays["columns"]):
        total = _symmetric(graph, model, Z, total)
    return _noded(graph, model, Z, total) if len(arrays["node_columns"]) else total


def _symmetric(graph: Graph, model: ExportedMap, Z: str, start: str) -> str:
    """The sides that a row is on are the bits of the number of its leaf."""
    columns, thresholds = model.arrays["columns"], model.arrays["thresholds"]
    bits = 1 << np.arange(columns.shape[1], dtype=np.int64)[::-1]

    def look_up(body: Graph, total: str, column: str, threshold: str, values: str) -> str:
        sides = body.cast(body.op("Greater", body.op("Gather", Z, column, axis=1), threshold), np.int64)
        leaf = body.op("ReduceSum", body.op("Mul", sides, bits[None]), [1], keepdims=0)
        return body.op("Add", total, body.cast(body.op("Gather", values, leaf, axis=0), np.float64))

    scanned = [graph.constant(each) for each in (columns, thresholds, model.tables)]
    return graph.scan(start, scanned, [np.float64, np.int64, np.float32, np.float32], look_up)


def _noded(graph: Graph, model: ExportedMap, Z: str, start: str) -> str:
    """As many steps from node to node as the deepest leaf takes. Leaves are nodes that lead to themselves: the cut is
    in the first column, beyond which no value is."""
    arrays = model.arrays
    trees, inner = arrays["node_columns"].shape
    leaves = np.arange(inner, 2 * inner + 1)
    columns = np.pad(arrays["node_columns"], ((0, 0), (0, inner + 1)))
    thresholds = np.pad(arrays["node_thresholds"], ((0, 0), (0, inner + 1)), constant_values=np.inf)
    both = np.broadcast_to(leaves[:, None], (trees, inner + 1, 2))
    children = np.concatenate([arrays["children"], both], axis=1).reshape(trees, -1)
    first = graph.cast(graph.rows_of(Z, np.zeros(1)), np.int64)  # (n, 1)

    def look_up(body: Graph, total: str, column: str, threshold: str, child: str, values: str) -> str:
        node = body.op("Identity", first)
        for _ in range(int(arrays["depth"])):
            value = body.op("GatherElements", Z, body.op("Gather", column, node, axis=0), axis=1)
            beyond = body.cast(body.op("Greater", value, body.op("Gather", threshold, node, axis=0)), np.int64)
            node = body.op("Gather", child, body.op("Add", body.op("Mul", node, np.int64(2)), beyond), axis=0)
        leaf = body.op("Sub", body.op("Squeeze", node, [1]), np.int64(inner))
        return body.op("Add", total, body.cast(body.op("Gather", values, leaf, axis=0), np.float64))

    scanned = [graph.constant(each) for each in (columns, thresholds, children, model.node_tables)]
    return graph.scan(start, scanned, [np.float64, np.int64, np.float32, np.int64, np.float32], look_up)


# -- random binning


def _binned(graph: Graph, model: ExportedMap, Z: str) -> str:
    """Cells of a grid, the hash of a row's cells, and a look-up, grid after grid.

    The hash is arithmetic modulo 2^32 and 2^64. Here it is done with products below 2^63, so that nothing overflows and
    no operator on bits is needed.
    """
    arrays, outputs = model.arrays, len(model.intercept)
    start = graph.rows_of(Z, np.zeros(outputs))
    scanned = [graph.constant(arrays["shifts"]), graph.constant(arrays["inverses"])]
    scanned += [graph.constant(arrays[half].astype(np.int64)) for half in ("low", "high")]
    types = [np.float64, np.float32, np.float32, np.int64, np.int64, np.float32]
    drop = 1 << (32 - int(arrays["bits"]))

    def look_up(body: Graph, total: str, shift: str, inverse: str, low: str, high: str, table: str) -> str:
        cells = _cells(body, Z, shift, inverse)
        word = _top_word(body, _hash(body, cells, low), _hash(body, cells, high))
        found = body.op("Gather", table, body.op("Div", word, drop), axis=0)
        return body.op("Add", total, body.cast(found, np.float64))

    return graph.scan(start, [*scanned, graph.constant(model.tables)], types, look_up)


def _cells(body: Graph, Z: str, shift: str, inverse: str) -> str:
    place = body.op("Floor", body.op("Mul", body.op("Sub", Z, shift), inverse))
    low, high = (body.constant(end, np.float32) for end in (-FARTHEST, FARTHEST))
    return body.cast(body.op("Min", body.op("Max", place, low), high), np.int64)


def _hash(body: Graph, cells: str, multipliers: str) -> str:
    """(n,): the sum of cells times multipliers, modulo 2^32."""
    products = body.op("Mod", body.op("Mul", cells, multipliers), WORD)
    return body.op("Mod", body.op("ReduceSum", products, [1], keepdims=0), WORD)


def _top_word(body: Graph, low: str, high: str) -> str:
    """The upper 32 bits of ``(high 2^32 + low) GOLDEN`` modulo 2^64."""
    carried = body.op("Add", _upper(body, low, MIX_LOW), _lower(body, low, MIX_HIGH))
    total = body.op("Add", carried, _lower(body, high, MIX_LOW))
    return body.op("Mod", total, WORD)


def _halves(body: Graph, value: str) -> tuple[str, str]:
    return body.op("Div", value, HALF), body.op("Mod", value, HALF)


def _upper(body: Graph, value: str, factor: int) -> str:
    """The upper 32 bits of ``value factor``, both below 2^32."""
    upper, lower = _halves(body, value)
    carried = body.op("Div", body.op("Mul", lower, factor), HALF)
    return body.op("Div", body.op("Add", body.op("Mul", upper, factor), carried), HALF)


def _lower(body: Graph, value: str, factor: int) -> str:
    """``value factor``, modulo 2^32 but for a multiple of it below 2^48."""
    upper, lower = _halves(body, value)
    shifted = body.op("Mul", body.op("Mod", body.op("Mul", upper, factor), HALF), HALF)
    return body.op("Add", shifted, body.op("Mul", lower, factor))
