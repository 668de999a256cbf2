"""Cases whose every draw is one call that returns numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from attsvm.validation.bench.judge import Line, Result, Spread, Verdict, at_least, at_most

__all__ = ["DrawCase", "NumberGoal", "Numbers", "later"]

# Of every line of a case.
Numbers = dict[str, dict[str, float]]


@dataclass(frozen=True)
class NumberGoal:
    """A bound on the median of a number of a line: ``sense`` is "at least" or "at most".

    With ``every_draw`` an upper bound holds for every draw: correctness has no median.
    """

    text: str
    line: str
    number: str
    sense: str
    bound: float
    every_draw: bool = False

    def judged(self, found: Spread) -> Verdict:
        """Whether the numbers meet it."""
        if self.sense == "at least":
            return at_least(self.text, self.bound, found)
        return at_most(self.text, self.bound, found, every_draw=self.every_draw)


def later(name: str, **settings: object) -> Callable[[int], Numbers]:
    """The function ``module:function`` of this folder with settings, imported when a seed is given."""

    def measure(seed: int) -> Numbers:
        module, function = name.split(":")
        found: Numbers = getattr(import_module(f"{__package__}.{module}"), function)(seed, **settings)
        return found

    return measure


@dataclass(frozen=True)
class DrawCase:
    """One piece of work.

    Attributes
    ----------
    name, title : str
    draw : callable
        From a seed to the numbers of each line.
    goals : tuple of NumberGoal
    slow : bool
        Left out of quick runs.
    opt_in : bool
        Run only when it is named.
    """

    name: str
    title: str
    draw: Callable[[int], Numbers]
    goals: tuple[NumberGoal, ...] = ()
    slow: bool = False
    opt_in: bool = False

    def run(self, seed: int, draws: int, report: Callable[[str], None]) -> Result:
        """Call ``draw`` with the seeds ``seed``, ``seed + 1``, ...

        Examples
        --------
        >>> from attsvm.validation.bench.draws import DrawCase, NumberGoal
        >>> goal = NumberGoal("fast", "ours", "ratio", "at least", 2.0)
        >>> case = DrawCase("x", "a case", lambda seed: {"ours": {"ratio": float(seed)}}, (goal,))
        >>> case.run(1, 3, print).verdicts[0]
        x: draw 1 of 3
        x: draw 2 of 3
        x: draw 3 of 3
        Verdict(text='fast', value=2.0, met=True)
        """
        found: list[Numbers] = []
        for k in range(draws):
            report(f"{self.name}: draw {k + 1} of {draws}")
            found.append(self.draw(seed + k))
        lines = {
            name: {number: Spread(tuple(draw[name][number] for draw in found)) for number in numbers}
            for name, numbers in found[0].items()
        }
        verdicts = tuple(goal.judged(lines[goal.line][goal.number]) for goal in self.goals)
        return Result(self.name, self.title, tuple(Line(name, numbers) for name, numbers in lines.items()), verdicts)
