"""From raw columns to features: scaling, kernels, feature maps, targets."""
