"""Claims of the paper on conditioning."""
