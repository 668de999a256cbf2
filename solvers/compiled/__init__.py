"""Methods in C and their calls from Python: interior point methods for every norm, pivoting, coordinate descent."""
