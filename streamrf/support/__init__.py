"""What every room may use: errors, units, threads, memory, progress, exact sums, storage; and the version."""

__version__ = "0.1.0"
