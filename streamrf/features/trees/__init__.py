"""Symmetric trees, grown one after the other: partitions that cut the columns that matter where it matters."""
