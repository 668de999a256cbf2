"""What a refused file raises, and the limit that keeps memory bounded."""

from __future__ import annotations

__all__ = ["MAX_BYTES", "ProblemFileError"]

# Decoded size of all arrays of a file together, unless the caller says otherwise.
MAX_BYTES = 2**30


class ProblemFileError(ValueError):
    """A problem file that cannot be read or written; the message is one line and starts with the path."""
