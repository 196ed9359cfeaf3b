"""What is summed over rows: each a commutative group of plain arrays."""
