"""Solvers of other packages behind the interface of `attsvm.solvers.solve`."""
