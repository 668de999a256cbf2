"""Least Frobenius norm: pivoting on Gram matrices, one dual step at a time, and matrix-free for many rows."""
