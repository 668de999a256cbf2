"""The list of cases: what is measured and the goals it is held to.

A `DrawCase` is one whose every draw is one call that returns numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from attsvm.validation.bench.measurement import Line, Numbers, Result, Spread, Verdict, at_least, at_most
from attsvm.validation.bench.solver_cases import Report, SolveCase, agreement, gradient_speed, growth, norm_speed


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


def called(name: str, seed: int, **settings: Any) -> Numbers:
    """``module:function`` of this folder at a seed; the module is imported by the call."""
    module, function = name.split(":")
    found: Numbers = getattr(import_module(f"{__package__}.{module}"), function)(seed, **settings)
    return found


def later(name: str, **settings: Any) -> partial[Numbers]:
    """`called` with settings, for a seed."""
    return partial(called, name, **settings)


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


# How much faster than cvxpy soft margins of small problems are to be, in the median over margins and sizes.
_SOFT_RATIOS = {
    "frobenius": 20.0, "nuclear": 20.0, "spectral": 10.0, "l1": 10.0, "linf": 10.0, "l1.5": 10.0, "l3": 10.0,
}  # fmt: skip

SOFT_CASES: tuple[DrawCase, ...] = (
    DrawCase(
        "matrix",
        "norm x margin x kind x size, alone and in batches, every solver, against cvxpy (one draw is all of it)",
        later("matrix_speed:matrix_agreement"),
        (NumberGoal("no fault", "all norms", "faults", "at most", 0.0, every_draw=True),),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "matrix-speed",
        "Att-SVM, norm x margin x size, alone and in batches of 50, against cvxpy CLARABEL",
        later("matrix_speed:matrix_speed"),
        (
            NumberGoal("every answer proved", "all", "unproved", "at most", 0.0, every_draw=True),
            NumberGoal("never slower than cvxpy", "all", "worst ratio", "at least", 1.0),
            NumberGoal("never slower than cvxpy in batches", "all", "worst ratio in a batch", "at least", 1.0),
            NumberGoal(
                "soft batch <= 5x the hard batch", "all", "worst time of a batch over the hard batch", "at most", 5.0
            ),
            *(
                NumberGoal(f"soft {norm}: {number} >= {bound:g} over cvxpy", f"{norm}, soft", number, "at least", bound)
                for norm, bound in _SOFT_RATIOS.items()
                for number in ("ratio", "ratio in a batch")
            ),
        ),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "multiclass",
        "Crammer-Singer SVM of iris, wine and digits, standardized features, against LinearSVC at tolerance 1e-8",
        later("fit_cases:multiclass_speed"),
        (
            NumberGoal("no worse than LinearSVC", "all", "largest excess", "at most", 1e-6, every_draw=True),
            NumberGoal("gap <= 1e-8", "all", "gap", "at most", 1e-8, every_draw=True),
        ),
        slow=True,
    ),
    DrawCase(
        "soft-path",
        "soft_path over 20 values of C, 0.01 to 100, in units of one solve (median over these C)",
        later("fit_cases:soft_path_cost"),
        tuple(
            goal
            for path in (
                "n=6, T=8, d=10",
                "n=200, T=10, d=16",
                "300 ragged tasks, d=64",
                "nuclear, n=6, T=8, d=10",
                "nuclear, n=20, T=6, d=12",
            )
            for goal in (
                NumberGoal(f"{path}: < 5 single solves", path, "path over one solve", "at most", 5.0),
                NumberGoal(f"{path}: every C proved", path, "unproved", "at most", 0.0, every_draw=True),
            )
        ),
    ),
    DrawCase(
        "soft-large",
        "soft margin, one slack per query, n = 5,000, T = 20, d = 128, one label in ten wrong",
        later("fit_cases:soft_size"),
        (NumberGoal("proved", "attsvm", "unproved", "at most", 0.0, every_draw=True),),
        slow=True,
        opt_in=True,
    ),
)


class Case(Protocol):
    """Something that can be run on a number of draws."""

    @property
    def name(self) -> str:
        """What ``attsvm bench --only`` takes."""
        ...

    @property
    def slow(self) -> bool:
        """Left out of quick runs."""
        ...

    @property
    def opt_in(self) -> bool:
        """Run only when it is named: takes minutes."""
        ...

    def run(self, seed: int, draws: int, report: Report) -> Result:
        """Measure and judge."""
        ...


def _over_cvxpy(times: float, gap: float) -> tuple[NumberGoal, ...]:
    return (
        NumberGoal(f">= {times:g}x cvxpy", "attsvm", "times as fast", "at least", times),
        NumberGoal(f">= {times:g}x cvxpy in batches", "attsvm", "times as fast in a batch", "at least", times),
        NumberGoal(f"gap <= {gap:.0e}".replace("e-0", "e-"), "attsvm", "gap", "at most", gap),
    )


_DAQP, _DAQP_LOOP = "daqp, Gram matrix given", "daqp loop, rows built"

_DENSE_QP = ("qpsolvers daqp", "qpsolvers piqp", "qpsolvers proxqp", "qpsolvers quadprog")

CASES: tuple[Case, ...] = (
    SolveCase("fro-tiny", (6, 8, 10), repeats=50, peers={"cvxpy per constraint": 60.0, "cvxpy CLARABEL": None}),
    SolveCase(
        "fro-bare", (6, 8, 10), repeats=200, read=False,
        peers={_DAQP: 1 / 3, "moreau active set": None, "moreau interior point": None},
    ),
    SolveCase(
        "fro-small",
        (20, 20, 50),
        repeats=5,
        peers={
            "cvxpy CLARABEL": 500.0,
            "cvxpy SCS": None,
            "cvxpy OSQP": None,
            "sklearn LinearSVC": None,
            "scipy NNLS": None,
            **dict.fromkeys(_DENSE_QP),
        },
        qp_goal=5.0,
        timeout=240.0,
    ),
    SolveCase(
        "fro-medium", (100, 50, 100), gap=1e-9, repeats=3, peers={"scipy NNLS": 100.0}, slow=True, timeout=300.0,
        peer_draws=1,
    ),
    SolveCase("fro-large", (1000, 64, 512), slow=True, memory=3.0),
    SolveCase("fro-gpt2", (4000, 64, 768), gap=1e-5, slow=True, dtype="float32", memory=3.0),
    SolveCase(
        "fro-batch", (5, 5, 10), batch=2000, repeats=3,
        peers={"cvxpy per constraint": 500.0, _DAQP_LOOP: None, "moreau active set": None},
    ),
    SolveCase(
        "fro-batch-daqp",
        (6, 8, 10),
        batch=500,
        repeats=5,
        peers={
            _DAQP_LOOP: 1.5,
            _DAQP: None,
            "moreau active set": None,
            "moreau interior point": None,
            "proxsuite batch": None,
        },
    ),
    SolveCase(
        "nuc-tiny",
        (6, 8, 10),
        "nuclear",
        repeats=20,
        peers={
            "nuclear: cvxpy per constraint": 10.0,
            "nuclear: cvxpy CLARABEL": None,
            "nuclear: cvxpy SCS": None,
            "nuclear: moreau PSD cones": None,
        },
    ),
    SolveCase("nuc-small", (20, 10, 30), "nuclear", repeats=3, peers={"nuclear: cvxpy CLARABEL": 40.0}, timeout=240.0),
    SolveCase(
        "nuc-large", (100, 50, 100), "nuclear", gap=1e-4, peers={"nuclear: cvxpy CLARABEL": None}, slow=True,
        timeout=120.0, peer_draws=1,
    ),
    SolveCase(
        "nuc-batch",
        (5, 5, 10),
        "nuclear",
        batch=500,
        repeats=2,
        peers={"nuclear: cvxpy per constraint": 30.0, "nuclear: moreau PSD cones": None},
    ),
    *(
        DrawCase(
            f"norms-{norm}",
            f"{norm} norm, (6, 8, 10), alone and in batches of 200, against the quickest of cvxpy's solvers",
            partial(norm_speed, norm=norm),
            _over_cvxpy(20.0, 1e-7),
            slow=True,
        )
        for norm in ("l1", "linf", "l1.5", "l3", "spectral")
    ),
    *SOFT_CASES,
    *(
        DrawCase(
            f"gradients-{norm}",
            f"gradients of W and of the margin, {norm} norm, (6, 8, 10), batches of 200, beside cvxpylayers and moreau",
            partial(gradient_speed, norm=norm, few=20 if norm == "frobenius" else 4),
            tuple(
                NumberGoal(f"backward <= forward, {what}", f"attsvm, {what}", "backward over forward", "at most", 1.0)
                for what in ("W", "margin")
            ),
            slow=True,
        )
        for norm in ("frobenius", "nuclear")
    ),
    DrawCase(
        "norms-agree",
        "100 problems per draw in spectral, l1, linf, l1.5 and l3 norms against certified cvxpy",
        agreement,
        (
            NumberGoal("gap <= 1e-7", "all norms", "worst gap", "at most", 1e-7),
            NumberGoal("same norm to 2e-7", "all norms", "worst difference", "at most", 2e-7),
            NumberGoal("all settled", "all norms", "unsettled", "at most", 0.0),
        ),
        slow=True,
    ),
    *(
        DrawCase(
            f"graphs-{norm}",
            f"Graph-SVM, {norm} norm, 4-10 sequences over 6-8 tokens, d = 8, alone and in batches of 200",
            later("model_cases:graph_speed", norm=norm),
            _over_cvxpy(50.0, 1e-8),
            slow=True,
        )
        for norm in ("frobenius", "nuclear")
    ),
    DrawCase(
        "graphs-large",
        "Graph-SVM of 100,000 sequences over 10,000 tokens, d = 16",
        later("model_cases:large_corpus"),
        (
            NumberGoal("graphs and components in 30 s", "attsvm", "seconds of the graphs", "at most", 30.0),
            NumberGoal("gap <= 1e-8", "attsvm", "gap", "at most", 1e-8),
        ),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "growth",
        "growth with n at T = 64, d = 512",
        growth,
        (NumberGoal("exponent below 1.3", "attsvm", "exponent", "at most", 1.3),),
        slow=True,
    ),
    DrawCase(
        "growth-all",
        "every function with a size, each size growing alone up to 10x",
        later("call_growth:growth_all"),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "selector",
        "soft selector, 2,000 tasks of 32 candidates, d = 384",
        later("fit_cases:selector_speed"),
        (
            NumberGoal(">= 50x LinearSVC", "attsvm", "times as fast as LinearSVC (extrapolated)", "at least", 50.0),
            NumberGoal(">= 50x, measured", "attsvm", "times as fast on 32 tasks (measured)", "at least", 50.0),
            NumberGoal("same objective", "attsvm", "objective of LinearSVC over ours, less 1", "at most", 1e-6),
            NumberGoal("memory of the tokens", "attsvm", "memory, in sizes of the tokens", "at most", 4.0),
        ),
        slow=True,
    ),
    DrawCase(
        "shared-rows",
        "16 x 64 structured, 64,512 rows, d = 385",
        later("fit_cases:shared_against_pairs"),
        (
            NumberGoal(
                ">= 5x rows written out", "shared rows", "times as fast as rows written out", "at least", 5.0
            ),
            NumberGoal("20x less memory", "shared rows", "times less memory", "at least", 20.0),
            NumberGoal("same norm", "shared rows", "difference of norms", "at most", 1e-8),
            NumberGoal("gap <= 1e-8", "shared rows", "gap", "at most", 1e-8),
        ),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "soft-rows",
        "soft margins, 364 rows, d = 385, 148,225 features written out for LinearSVC",
        later("fit_cases:soft_against_linear_svc"),
        (
            NumberGoal(">= 20x LinearSVC", "attsvm", "times as fast as LinearSVC", "at least", 20.0),
            NumberGoal("same W", "attsvm", "difference of W", "at most", 1e-6),
            NumberGoal("gap <= 1e-7", "attsvm", "gap", "at most", 1e-7),
        ),
        slow=True,
    ),
    DrawCase(
        "nuc-shared",
        "nuclear norm, 8 x 64 structured, 32,256 rows, d = 385",
        later("fit_cases:nuclear_size"),
        (
            NumberGoal("gap <= 1e-5", "attsvm", "gap", "at most", 1e-5),
            NumberGoal("under 5 minutes", "attsvm", "seconds", "at most", 300.0),
        ),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "nuc-rank",
        "nuclear norm, rank at most 8, 3,024 rows, d = 64, 4 and 16 seconds",
        later("fit_cases:rank_in_time"),
        (
            NumberGoal("gap <= 0.05", "attsvm", "gap to the convex bound", "at most", 0.05),
            NumberGoal(
                "more time is not worse", "attsvm", "norm with more time over norm with less", "at most", 1.0 + 1e-6
            ),
            NumberGoal("ends within 1.2 of the time", "attsvm", "time taken over time asked", "at most", 1.2),
        ),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "large",
        "32 x 128 causal, 260,096 rows, d = 385",
        later("fit_cases:large_solve", size=(32, 128, 384), parts=(8, 16, 32)),
        (
            NumberGoal("under 3 minutes", "32 x 128 causal", "seconds", "at most", 180.0),
            NumberGoal("gap <= 1e-8", "32 x 128 causal", "gap", "at most", 1e-8),
        ),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "huge",
        "16 x 512 causal, 2,093,056 rows, d = 577",
        later("fit_cases:large_solve", size=(16, 512, 576), parts=(4, 16)),
        (
            NumberGoal("under 30 minutes", "16 x 512 causal", "seconds", "at most", 1800.0),
            NumberGoal("gap <= 1e-8", "16 x 512 causal", "gap", "at most", 1e-8),
            NumberGoal("below 6 GB", "16 x 512 causal", "MB", "at most", 6000.0),
        ),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "probe-cheap",
        "probe of MiniLM without SVMs, 72 heads, 32 x 128 tokens (make models)",
        later("model_cases:cheap_speed"),
        (NumberGoal("under 60 s", "attsvm", "seconds", "at most", 60.0),),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "probe-svm",
        "SVM measures of a head of MiniLM at the default budget (make models)",
        later("model_cases:svm_speed"),
        (
            NumberGoal("under 30 min (extrapolated)", "attsvm", "minutes for all heads on 2 cores", "at most", 30.0),
            NumberGoal("gap <= 1e-4", "attsvm", "gap", "at most", 1e-4),
            NumberGoal("soft nuclear <= 1e-2", "attsvm", "gap of the soft nuclear solve", "at most", 1e-2),
        ),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "monitor",
        "a monitor at every = 100 beside training steps, 6 layers, d = 384",
        later("model_cases:monitor_cost"),
        (NumberGoal("below 5 % of a step", "attsvm", "share of a step", "at most", 0.05),),
        slow=True,
    ),
    DrawCase(
        "training",
        "training, batch 500, n = T = 5, d = 10",
        later("model_cases:training_throughput"),
        (NumberGoal(">= 100x autograd", "attsvm W", "times as fast as the autograd loop", "at least", 100.0),),
    ),
    *(
        DrawCase(
            f"spectrum-{scale:g}",
            f"spectra of 1000 softmax Jacobians, n = 1024, logits of spread {scale:g}",
            later("model_cases:spectrum_speed", scale=scale),
            (NumberGoal(">= 50x eigvalsh", "attsvm", "times as fast as eigvalsh", "at least", 50.0),),
            slow=True,
        )
        for scale in (1.0, 4.0)
    ),
    DrawCase(
        "heads",
        "gradient of the reduced loss, H = 8, F = 3, L = 5, 1e5 samples",
        later("model_cases:reduced_gradient_speed"),
        tuple(
            NumberGoal(f">= 20x term by term, {kind}", kind, "times as fast as term by term", "at least", 20.0)
            for kind in ("softmax", "softmax1", "bayes")
        ),
    ),
)  # fmt: skip
