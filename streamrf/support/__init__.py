"""What every room may use: errors, units, threads, memory, progress, exact sums, storage."""
