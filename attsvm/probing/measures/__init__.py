"""What is measured of a head, one module per theory."""
