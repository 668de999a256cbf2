"""The ``attsvm`` command."""
