"""Tables with named columns of any type, read as arrow batches one after the other."""
