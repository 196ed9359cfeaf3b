"""What lies on disk: files that are whole or not there, JSON, arrays, archives, checkpoints."""
