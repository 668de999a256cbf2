"""Claims of the paper on attention as a support vector machine."""
