"""Least spectral, l_1, l_inf and l_p norms: one primal-dual interior point method, and vertices of small programs."""
