"""Models for programs that do not have streamrf: as ONNX, and as a page of numpy."""

from streamrf.export.pipeline import Pipeline, pipeline_of

__all__ = ["Pipeline", "pipeline_of"]
