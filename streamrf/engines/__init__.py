"""Where the summing happens: in this process, or on a Dask cluster."""
