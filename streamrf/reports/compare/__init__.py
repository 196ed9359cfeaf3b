"""Maps side by side: errors of kernels, bounds, spectra, pictures."""
