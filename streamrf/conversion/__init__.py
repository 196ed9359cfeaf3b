"""From files as people have them to chunked zarr or parquet, in bounded memory."""

from streamrf.conversion.convert import Conversion, convert

__all__ = ["Conversion", "convert"]
