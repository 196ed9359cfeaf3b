"""What people look at: the report of a model, the comparison of maps, plots."""
