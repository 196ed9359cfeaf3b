"""A thin way to write ONNX graphs: every operation takes names and gives one."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.errors import InputError, MissingDependencyError

OPSET, ML_OPSET, IR_VERSION = 17, 3, 8
MAX_BYTES = 2_000_000_000  # protobuf's limit, nearly


def onnx_package() -> Any:
    """The onnx package, or how to get it."""
    try:
        import onnx
    except ImportError as error:
        raise MissingDependencyError(
            "writing ONNX needs a package that is missing: pip install 'streamrf[onnx]'"
        ) from error
    return onnx


class Graph:
    """Nodes and constants as they are added."""

    def __init__(self) -> None:
        self._onnx = onnx_package()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._bytes = 0

    def input(self, name: str, dtype: Any, shape: list[Any]) -> str:
        self.inputs.append(self._onnx.helper.make_tensor_value_info(name, self.type_of(dtype), shape))
        return name

    def output(self, value: str, name: str, dtype: Any, shape: list[Any]) -> None:
        self.nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(self._onnx.helper.make_tensor_value_info(name, self.type_of(dtype), shape))

    def type_of(self, dtype: Any) -> int:
        kinds = self._onnx.TensorProto
        if dtype is str:
            return int(kinds.STRING)
        return int(self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def constant(self, value: Any, dtype: Any = None) -> str:
        """An array in the file."""
        array = np.asarray(value, dtype)
        self._bytes += array.nbytes
        if self._bytes > MAX_BYTES:
            raise InputError("the model is larger than the 2 GB that an ONNX file may have: export it with --numpy")
        name = f"c{len(self.constants)}"
        if array.dtype.kind == "U":
            texts = [text.encode() for text in array.ravel().tolist()]
            tensor = self._onnx.helper.make_tensor(name, self._onnx.TensorProto.STRING, array.shape, texts)
        else:
            tensor = self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        self.constants.append(tensor)
        return name

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """One operation with one result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        return self.op("Cast", value, to=self.type_of(dtype))

    def model(self, description: str) -> Any:
        helper = self._onnx.helper
        graph = helper.make_graph(
            self.nodes, "streamrf", self.inputs, self.outputs, self.constants, doc_string=description
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="streamrf")
        model.ir_version = IR_VERSION
        return model

    def chain(self, start: str, rows: str, weights: str) -> str:
        """``start + sum_j rows_j weights_j`` in float32, each step rounded once, as fused multiply-adds are.

        ``rows`` is (d, n, 1) and ``weights`` (d, F), both float64; a product of two float32 is exact there.
        """
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        body = helper.make_graph(
            [
                helper.make_node("Mul", ["x", "w"], ["product"]),
                helper.make_node("Cast", ["total"], ["wide"], to=kinds.DOUBLE),
                helper.make_node("Add", ["product", "wide"], ["sum"]),
                helper.make_node("Cast", ["sum"], ["next"], to=kinds.FLOAT),
            ],
            "fused_multiply_add",
            [
                helper.make_tensor_value_info("total", kinds.FLOAT, [None, None]),
                helper.make_tensor_value_info("x", kinds.DOUBLE, [None, 1]),
                helper.make_tensor_value_info("w", kinds.DOUBLE, [None]),
            ],
            [helper.make_tensor_value_info("next", kinds.FLOAT, [None, None])],
        )
        return self.op("Scan", start, rows, weights, body=body, num_scan_inputs=2)
