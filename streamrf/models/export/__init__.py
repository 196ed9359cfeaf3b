"""Models for programs that do not have streamrf: as ONNX, and as a page of numpy."""
