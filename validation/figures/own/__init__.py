"""Checks of our own: what the library says of its solvers, its training and its lists."""
