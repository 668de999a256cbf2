"""Scripts that reproduce figures and check claims."""
