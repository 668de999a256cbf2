"""Claims of the paper on specialization."""
