"""Statements of newer papers on the same margin problem, as far as their abstracts or a derivation of ours say them."""
