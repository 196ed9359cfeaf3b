"""Feature maps: Fourier features with frequencies drawn or learned, and random binning."""
