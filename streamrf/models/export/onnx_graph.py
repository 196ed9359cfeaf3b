"""A thin way to write ONNX graphs: every operation takes names and gives one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

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
        assert not name.startswith(self._prefix)
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
            raise InputError("the model is larger than the 2 GB that an ONNX file may have: export it with --numpy")
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
