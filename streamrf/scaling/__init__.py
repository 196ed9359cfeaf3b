"""Scaling of columns before the map."""
