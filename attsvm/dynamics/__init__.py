"""Sibling models of softmax attention: conditioning, polarization, localization, specialization.

Each is a subpackage of its own on the algebra of `attsvm.softmax`; none is loaded by this package.
"""
