"""Figures of the paper on specialization."""
