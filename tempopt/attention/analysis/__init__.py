"""Statistics of attention weights, metrics, monitor and diagnosis."""
