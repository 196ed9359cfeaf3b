"""Memory and time of a run, before any row is read."""
