"""Figures of the paper on conditioning."""
