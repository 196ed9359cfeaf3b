"""From sums to weights."""
