"""Prediction heads h: what a composed token is worth before the label's sign.

A head is one class: its parameters, its value and, where it is known, its gradient, each written once for NumPy
arrays and torch tensors (`Head` says how). Scores, training, Assumption E and problem files all use that class. Any
callable that maps vectors ``(..., d)`` to numbers ``(...)`` is a head, too (`CallableHead`); what it cannot do it says
when asked.
"""

from attsvm.heads.base import Bend, Head, stored_heads
from attsvm.heads.callables import CallableHead, as_head
from attsvm.heads.standard import ConcaveHead, LinearHead, ReluHead

__all__ = ["Bend", "CallableHead", "ConcaveHead", "Head", "LinearHead", "ReluHead", "as_head", "stored_heads"]
