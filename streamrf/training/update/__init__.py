"""Statistics that add and subtract: update a model with new shards, forget old ones, merge what was summed apart."""
