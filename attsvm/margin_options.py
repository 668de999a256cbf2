"""The keywords that the functions around the attention SVMs share: their types, their defaults and what they mean.

A function that takes them has ``**options: Unpack[SvmOptions]`` (or another mapping of this module) and the decorator
`takes`, which writes the keywords into its signature and their description into its docstring. Type checkers and
editors read the mapping; `help`, shells and the reference read the signature and the docstring.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, get_type_hints

import numpy.typing as npt

from attsvm.solution import SUPPORT_TOLERANCE, Solution, SolutionBatch
from attsvm.solvers import SOLVERS
from attsvm.solvers.penalty import LossKind, SlackKind
from attsvm.user_input import check_keywords

FunctionT = TypeVar("FunctionT", bound=Callable[..., object])


class MethodOptions(TypedDict, total=False):
    """What is passed on to the solver as it is; each method takes some of them.

    An outside solver ("cvxpy:SCS", ...) takes options of its own, which no list has: for a type checker pass them as
    ``**settings`` with ``settings: dict[str, Any]``.
    """

    tolerance: float | None
    max_iterations: int | None
    time_limit: float | None
    memory_limit: float | None
    progress: Callable[..., object] | None
    rescue: bool
    columns: int | None
    starts: int | None
    seed: int | None


class SolverOptions(MethodOptions, total=False):
    """Which W is the smallest, and how it is computed.

    Attributes
    ----------
    norm : str
        "frobenius" (the bias of W), "nuclear" (the bias of (K, Q)), "spectral", "l1", "linf", "l<p>".
    solver : str
        "auto" tries the methods of the norm from quick to robust, a batch of small problems at once. A name from
        `attsvm.solvers.SOLVERS` puts that method first; "cvxpy", "cvxpy:SCS", "cvxpy:CLARABEL", ... run alone.
    """

    norm: str
    solver: str


class _SlackOptions(TypedDict, total=False):
    """How rows may be violated.

    Attributes
    ----------
    slack : {"query", "row"}
        One slack per query (its selection holds or not; the multipliers of a query add up to at most C), or per row.
        Other than "query" only with C.
    loss : {"hinge", "squared_hinge"}
        Slacks cost ``C sum xi`` or ``C sum xi^2``. Other than "hinge" only with C.
    """

    slack: SlackKind
    loss: LossKind


class _FrameOptions(TypedDict, total=False):
    """What the tokens and W are compared with.

    Attributes
    ----------
    prior : array_like, shape (dx, dz) or (batch, dx, dz), optional
        Stay close to this W0: minimize ``||W - W0||`` over the same W. ``sol.W`` is then the whole W and ``sol.change``
        what was added; norm, margin, rank, direction and certificate are those of the change. A W0 that separates
        already is not changed at all, and a rank is that of the change.
    offset : array_like, shape ``query_shape + (T,)``, optional
        Added to the logits (ALiBi, relative biases); W need not supply what it gives.
    support_tolerance : float
        A token is in the support when its margin is within this distance of 1.
    """

    prior: npt.ArrayLike | None
    offset: npt.ArrayLike | None
    support_tolerance: float


class MarginOptions(SolverOptions, _SlackOptions, total=False):
    """Hard or soft margins: the keywords of `attsvm.verify` and `attsvm.edit`.

    Attributes
    ----------
    C : float, optional
        Soft margin: minimize ``||W||_F^2 / 2 + C sum xi`` (other norms: ``||W|| + C sum xi``), where rows may fall
        short by their slack xi. None requires every margin; as C grows the solution becomes that of None.
    """

    C: float | None


class PathOptions(SolverOptions, _SlackOptions, _FrameOptions, total=False):
    """Keywords of `attsvm.soft_path`: those of the SVMs without C."""


class SvmOptions(MarginOptions, _FrameOptions, total=False):
    """Keywords of `attsvm.gen_svm` and `attsvm.finite_part`."""


class AttSvmOptions(SvmOptions, total=False):
    """Keywords of `attsvm.att_svm` and `attsvm.satt_svm`.

    Attributes
    ----------
    rank : int, optional
        Largest rank allowed (nuclear norm; nonconvex when it binds). At least min(n K, dx, dz) never binds (in
        entrywise norms at least min(dx, dz)). The status is "optimal" only when the answer is proved global, "local"
        otherwise; ``result.extras.rank_limit`` has the convex bound.
    warm_start : Solution or SolutionBatch, optional
        Of another selection of a problem of the same shape: own solvers start from its multipliers.
    """

    rank: int | None
    warm_start: Solution | SolutionBatch | None


DEFAULTS: AttSvmOptions = {
    "norm": "frobenius",
    "C": None,
    "slack": "query",
    "loss": "hinge",
    "rank": None,
    "prior": None,
    "offset": None,
    "solver": "auto",
    "support_tolerance": SUPPORT_TOLERANCE,
    "warm_start": None,
}
"""What a keyword is when it is left out; those of `MethodOptions` are then the solver's choice."""


def _described() -> dict[str, str]:
    """What the docstrings above say of each keyword, as an entry of a list of parameters."""
    entries: dict[str, str] = {}
    for kind in (SolverOptions, _SlackOptions, _FrameOptions, MarginOptions, AttSvmOptions):
        listed = (inspect.getdoc(kind) or "").partition("----------\n")[2]
        for entry in re.split(r"\n(?=\w)", listed):
            entries[entry.partition(" :")[0]] = entry.rstrip()
    return entries


_DESCRIBED = _described()


def takes(kind: type[Any]) -> Callable[[FunctionT], FunctionT]:
    """Write shared keywords into the signature and the docstring of a function that takes them as ``**options``.

    Parameters
    ----------
    kind : type
        A mapping of this module. What it says of a keyword goes before the line ``**options`` of the docstring.

    Examples
    --------
    >>> import inspect
    >>> @takes(SolverOptions)
    ... def solved(problem, **options):
    ...     ...
    >>> inspect.signature(solved)
    <Signature (problem, *, norm: str = 'frobenius', solver: str = 'auto', **options: object)>
    """
    hints: dict[str, object] = get_type_hints(kind)
    for name, written_as in kind.__annotations__.items():
        if "ArrayLike" in (source := written_as.__forward_arg__):  # in full it is a long union
            hints[name] = source
    shared = {name: default for name, default in DEFAULTS.items() if name in hints}

    def written(function: FunctionT) -> FunctionT:
        signature = inspect.signature(function)
        *before, rest = signature.parameters.values()
        keywords = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
            for name, default in shared.items()
        ]
        parameters = [*before, *keywords, rest.replace(annotation=object)]
        function.__dict__["__signature__"] = signature.replace(parameters=parameters)
        text = "\n".join(_DESCRIBED.get(name, "") for name in shared)
        indented = "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())
        if function.__doc__:
            function.__doc__ = function.__doc__.replace("    **options", f"{indented}    **options", 1)
        return function

    return written


def check_options(function: str, kind: type[Any], options: Mapping[str, object], *more: str) -> None:
    """Refuse a keyword that neither the function nor a solver takes; the message names the nearest one.

    Parameters
    ----------
    function : str
        Its name.
    kind : type
        The mapping of its keywords.
    options : mapping
        What was given.
    *more : str
        Keywords that it takes besides.

    Examples
    --------
    >>> check_options("solved", SolverOptions, {"nomr": "nuclear"})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    TypeError: solved takes no option 'nomr'; did you mean 'norm'? It takes norm, solver and, for the solver, ...
    """
    if options.keys() <= kind.__annotations__.keys():
        return
    name = str(options.get("solver", "auto")).partition(":")[0]
    if name in SOLVERS and SOLVERS[name].options is None:
        return  # an outside solver knows its own options
    own = [keyword for keyword in (*DEFAULTS, *more) if keyword in kind.__annotations__ or keyword in more]
    method = set(MethodOptions.__annotations__).union(*(spec.options or () for spec in SOLVERS.values()))
    check_keywords(function, options, own, sorted(method))


def method_options(kind: type[Any], options: Mapping[str, object]) -> dict[str, Any]:
    """Of the keywords of a call those that are passed on to the solver as they are.

    Parameters
    ----------
    kind : type
        The mapping of the keywords that the function takes.
    options : mapping
        What was given.

    Examples
    --------
    >>> method_options(SolverOptions, {"norm": "nuclear", "tolerance": 1e-6})
    {'tolerance': 1e-06}
    """
    if not options:
        return {}
    own = kind.__annotations__.keys() - MethodOptions.__annotations__.keys()
    return {name: value for name, value in options.items() if name not in own}
