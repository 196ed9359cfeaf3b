"""Frequencies, weights and metrics that are learned from a sample of rows, then fixed for the pass over all of them."""
