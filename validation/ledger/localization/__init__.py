"""Claims of the paper on localization."""
