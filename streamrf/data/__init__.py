"""Where rows come from and where predictions go: sources, readers of formats, columns, conversion, writers."""
