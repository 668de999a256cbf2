"""Claims of the paper on polarization."""
