"""Rows of margin problems: the protocol that solvers see, rows as pairs, and rows that share tokens."""
