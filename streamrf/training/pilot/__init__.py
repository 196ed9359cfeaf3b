"""Choosing settings on a sample of rows, before the passes."""
