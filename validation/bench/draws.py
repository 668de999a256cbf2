"""Cases whose every draw is one call that returns numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attsvm.validation.bench.judge import Line, Result, Spread, at_least, at_most

__all__ = ["DrawCase", "NumberGoal"]


@dataclass(frozen=True)
class NumberGoal:
    """A bound on the median of a number of a line: ``sense`` is "at least" or "at most"."""

    text: str
    line: str
    number: str
    sense: str
    bound: float


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
    draw: Callable[[int], dict[str, dict[str, float]]]
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
        found: list[dict[str, dict[str, float]]] = []
        for k in range(draws):
            report(f"{self.name}: draw {k + 1} of {draws}")
            found.append(self.draw(seed + k))
        lines = {
            name: {number: Spread(tuple(draw[name][number] for draw in found)) for number in numbers}
            for name, numbers in found[0].items()
        }
        verdicts = []
        for goal in self.goals:
            judge = at_least if goal.sense == "at least" else at_most
            verdicts.append(judge(goal.text, goal.bound, lines[goal.line][goal.number]))
        return Result(
            self.name, self.title, tuple(Line(name, numbers) for name, numbers in lines.items()), tuple(verdicts)
        )
