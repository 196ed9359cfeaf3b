"""Chunked tables: where rows come from. Storage libraries are imported only when a source of their kind is opened."""

from streamrf.sources.base import Block, Source, Span
from streamrf.sources.memory import ArraySource
from streamrf.sources.open import open_source

__all__ = ["ArraySource", "Block", "Source", "Span", "open_source"]
