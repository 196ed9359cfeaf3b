"""Where rows come from and where predictions go. Imports point upwards in this list only:

hashing      hashes of rows and texts, compiled
locations    paths and URLs; failures explained, reads tried again
columns/     how raw columns become numbers: chosen, learned, encoded
source       Span, Block, Source: what a table looks like to everything else
readers/     one module for each format; ``base`` says what a reader is, the package finds the one for a location
wrappers     sources made of other sources: shards, weights
screening    rows that can be used, and a sample of them
writers/     predictions and tables to files
cache        files that are read in order only, as parquet
frames       data frames as tables
open         ``open_source``: from what a user names to a source
convert/     from files of any format to chunked zarr or parquet
"""
