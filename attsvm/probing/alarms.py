"""When a head goes wrong while it trains: what is watched, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Alarm", "AlarmRules"]


@dataclass(frozen=True)
class Alarm:
    """One crossing of a threshold.

    Attributes
    ----------
    step, layer, head : int
    kind : {"entropy collapse", "saturation", "exploding logit", "new sink"}
    value : float
        The measure that crossed.
    """

    step: int
    layer: int
    head: int
    kind: str
    value: float

    def __str__(self) -> str:
        return f"step {self.step}: {self.kind} in layer {self.layer}, head {self.head} ({self.value:.3g})"


@dataclass(frozen=True)
class AlarmRules:
    """Thresholds; an alarm is raised when a head crosses one, not while it stays beyond.

    Attributes
    ----------
    entropy_share : float
        Entropy collapse: entropy over its largest value falls below this.
    saturation : float
        Share of queries whose gradient is rounding noise in the training dtype exceeds this.
    max_logit : float
        Exploding logit: the largest one exceeds this.
    sink : float
        New sink: attention on the first token exceeds this.

    Examples
    --------
    >>> from attsvm.probing.alarms import AlarmRules
    >>> rules = AlarmRules()
    >>> calm, wild = {"max_logit": 5.0, "sink_share_first": 0.1}, {"max_logit": 500.0, "sink_share_first": 0.1}
    >>> [str(alarm) for alarm in rules.crossings(7, 0, 3, calm, wild)]
    ['step 7: exploding logit in layer 0, head 3 (500)']
    >>> list(rules.crossings(8, 0, 3, wild, wild))
    []
    """

    entropy_share: float = 0.02
    saturation: float = 0.5
    max_logit: float = 100.0
    sink: float = 0.5

    def crossings(
        self, step: int, layer: int, head: int, before: Mapping[str, float] | None, now: Mapping[str, float]
    ) -> Iterator[Alarm]:
        """Alarms of one head between two measurements; the first measurement raises those it finds."""
        watched = (
            ("entropy collapse", "entropy_share", -self.entropy_share, -1.0),
            ("saturation", "noise", self.saturation, 1.0),
            ("exploding logit", "max_logit", self.max_logit, 1.0),
            ("new sink", "sink_share_first", self.sink, 1.0),
        )
        for kind, name, limit, sign in watched:
            if name not in now or not sign * now[name] > limit:
                continue
            if before is None or name not in before or not sign * before[name] > limit:
                yield Alarm(step, layer, head, kind, now[name])
