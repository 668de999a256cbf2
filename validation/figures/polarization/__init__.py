"""Figures of the paper on polarization."""
