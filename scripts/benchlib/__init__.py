"""What the benchmarks share: data sets, measured processes, kept results, the peers, and the page made of them."""
