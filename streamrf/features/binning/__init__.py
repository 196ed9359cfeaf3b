"""Random binning: grids of random width and offset, hashed into tables of bins."""
