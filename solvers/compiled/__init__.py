"""Interior point methods in C for the spectral, l_1, l_inf and l_p norms, and their call from Python."""
