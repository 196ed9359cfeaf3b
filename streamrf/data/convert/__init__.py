"""From files as people have them to chunked zarr or parquet, in bounded memory."""
