"""Least nuclear norm: interior points, low-rank factors, Newton on the manifold of the solution, uniqueness."""
