"""Figures of the paper on localization."""
