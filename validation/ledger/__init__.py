"""The claims of the papers, each with a check that can be run again."""

from attsvm.validation.ledger.claim_record import Claim, Measurement, Verdict

__all__ = ["Claim", "Measurement", "Verdict"]
