"""Certificates: what data, W and multipliers prove, with the rounding of every number accounted for."""
