"""Short and long texts that belong together, from what a machine has, and their embeddings on disk.

Sources: docstrings of Python's library (parsed, not imported), descriptions of Debian packages in the lists of apt, and
manual pages. Of pairs whose long text nearly repeats another one, one is kept.
"""

from __future__ import annotations

import ast
import gzip
import os
import random
import re
import subprocess
import sysconfig
import time
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.records import atomic_write, digest
from attsvm.sklearn import AttentionSelector, mean_reciprocal_rank
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.validation.pretrained.installed_models import embed

TextPair = tuple[str, str, str]
"""Group (module, section of packages), short text, long text."""
_SKIPPED = ("test", "idlelib", "lib2to3", "turtledemo", "site-packages", "__pycache__", "ensurepip", "pydoc_data")

_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")  # where statements hold statements

_WORD = re.compile(r"[a-z0-9_]+")


def _documented(tree: ast.AST) -> Iterator[str]:
    """Docstrings in the order of `ast.walk`, which would look at every expression as well."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        waiting.extend(part for name in _BLOCKS for part in getattr(node, name, ()))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text


def _split(text: str) -> tuple[str, str] | None:
    """Summary line and body, if both say something."""
    head, _, body = text.partition("\n\n")
    summary, rest = " ".join(head.split()), " ".join(body.split())
    if "\n" in head.strip() or not 3 <= len(summary.split()) <= 30 or len(rest.split()) < 12:
        return None
    return summary, rest


def docstring_pairs(limit: int | None = None, seed: int = 0) -> list[TextPair]:
    """(module, summary, body) of docstrings of the standard library, in the order of the modules' names.

    Parameters
    ----------
    limit : int, optional
        Pairs to return, drawn at random from the whole library: the first ones would come from few large modules.
    seed : int
        Of the draw.

    Examples
    --------
    >>> module, summary, body = docstring_pairs(30)[-1]
    >>> len(summary.split()) >= 3 and len(body.split()) >= 12, module > "m"  # not from the beginning of the alphabet
    (True, True)
    """
    found = _every_pair()
    if limit is None or limit >= len(found):
        return list(found)
    return [found[k] for k in sorted(random.Random(seed).sample(range(len(found)), limit))]


@cache
def _every_pair() -> tuple[TextPair, ...]:
    """All pairs; the library of a running Python does not change."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[TextPair] = []
    bodies: dict[str, list[frozenset[str]]] = {}  # copies are in the same module
    summaries: set[str] = set()
    for path in _modules(root):
        parts = path.relative_to(root).with_suffix("").parts
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for text in _documented(tree):
            pair = _split(text)
            words = frozenset(_WORD.findall(pair[1].lower())) if pair else frozenset()
            if pair is None or pair[0] in summaries or _repeats(words, bodies.get(parts[0], [])):
                continue
            summaries.add(pair[0])
            bodies.setdefault(parts[0], []).append(words)
            found.append((parts[0], *pair))
    return tuple(found)


def package_pairs(limit: int | None = None, seed: int = 0) -> list[TextPair]:
    """(section, synopsis, description) of Debian packages, from the lists of apt; empty where there are none.

    Lists have descriptions where apt fetches translations (``apt-get -o Acquire::Languages=en update``).

    Parameters
    ----------
    limit : int, optional
        Pairs to return, drawn at random; of pairs that share the synopsis or most words of the description one is kept.
    seed : int
        Of the draw.

    Examples
    --------
    >>> all(len(synopsis.split()) >= 3 for _, synopsis, _ in package_pairs(5))
    True
    """
    sections = {field["Package"]: field.get("Section", "") for field in _stanzas("*_Packages*")}
    texts = {
        field["Package"]: field["Description-en"]
        for field in _stanzas("*_Translation-en*")
        if "Description-en" in field
    }

    def drawn() -> Iterator[TextPair]:
        names = sorted(texts)
        random.Random(seed).shuffle(names)
        for name in names:
            synopsis, _, body = texts[name].partition("\n")
            yield sections.get(name, ""), synopsis, " ".join(line for line in body.split() if line != ".")

    return _different(drawn(), limit)


def manual_pairs(limit: int | None = None, seed: int = 0) -> list[TextPair]:
    """(section, purpose, description) of manual pages; empty where none are installed.

    The purpose is what follows the name in the section NAME, the description the text of the section DESCRIPTION.

    Parameters
    ----------
    limit : int, optional
        Pairs to return, drawn at random; of pairs that share the purpose or most words of the description one is kept.
    seed : int
        Of the draw.

    Examples
    --------
    >>> all(len(purpose.split()) >= 3 for _, purpose, _ in manual_pairs(5))
    True
    """

    def drawn() -> Iterator[TextPair]:
        paths = sorted(path for k in _MANUAL for path in Path(f"/usr/share/man/man{k}").glob("*.gz"))
        random.Random(seed).shuffle(paths)
        for path in paths:
            try:
                page = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
            except (OSError, EOFError, zlib.error):  # a damaged file, or a link to a page that is gone
                continue
            name, description = (_of_manual(page, title) for title in ("NAME", "DESCRIPTION"))
            yield path.parent.name, name.partition(" - ")[2], description

    return _different(drawn(), limit)


_MANUAL = (1, 3, 5, 7, 8)
# Escapes of roff: fonts and sizes, named characters, the dash; what begins with a dot is a macro and its arguments.
_FONT, _NAMED, _SECTION = (
    re.compile(r"\\[fs](?:\(..|\[[^]]*\]|[-+]?.)"),
    re.compile(r"\\(?:\(..|\[[^]]*\])"),
    re.compile(r"^\.S[Hh] ", re.M),
)
_TEXT_MACRO = re.compile(r"\.(?:[BI]|BR|RB|IR|RI|BI|IB|Nm|Nd|Ar|Fl|Xr|Pa|Em|Sy|Li)\s+")


def _of_manual(page: str, title: str) -> str:
    """The text of a section of a manual page in roff, without its macros; empty if the page lacks it."""
    part = next((one for one in _SECTION.split(page) if one.partition("\n")[0].strip(' "').upper() == title), "")
    words = []
    for line in part.partition("\n")[2].splitlines():
        text = line.replace(".Nd ", "- ") if line.startswith(".Nd ") else _TEXT_MACRO.sub("", line, count=1)
        if not text.startswith((".", "'")):
            text = _NAMED.sub(" ", _FONT.sub("", text.replace("\\-", "-")))
            words += text.replace("\\&", "").replace("\\", "").replace('"', "").split()
    return " ".join(words)


def _different(drawn: Iterable[TextPair], limit: int | None) -> list[TextPair]:
    """The first pairs that are long enough and repeat none before: neither the short text nor most of the long one."""
    found: list[TextPair] = []
    shorts: set[str] = set()
    bodies: dict[str, list[frozenset[str]]] = {}
    for group, short, rest in drawn:
        words = frozenset(_WORD.findall(rest.lower()))
        few = len(short.split()) < 3 or len(rest.split()) < 12
        if few or short in shorts or _repeats(words, bodies.get(group, [])):
            continue
        shorts.add(short)
        bodies.setdefault(group, []).append(words)
        found.append((group, short, rest))
        if limit is not None and len(found) == limit:
            break
    return found


SOURCES = {
    "packages": (package_pairs, "synopses and descriptions of Debian packages"),
    "manual": (manual_pairs, "purposes and descriptions of manual pages"),
    "docstrings": (docstring_pairs, "summaries and bodies of docstrings of Python's library"),
}


def text_pairs(sources: Sequence[str], count: int) -> tuple[list[TextPair], str]:
    """So many pairs of the first source that has them, or of the largest one, and where they are from.

    Examples
    --------
    >>> pairs, source = text_pairs(["docstrings"], 3)
    >>> len(pairs), source
    (3, "summaries and bodies of docstrings of Python's library")
    """
    for name in sources:
        if name not in SOURCES:
            raise ValueError(f"texts must be some of {', '.join(SOURCES)}, got {name!r}")
    best: list[TextPair] = []
    source = ""
    for name in sources:
        pairs = SOURCES[name][0](count)
        if len(pairs) > len(best):
            best, source = pairs, SOURCES[name][1]
        if len(best) == count:
            break
    if not best:
        raise ValueError(
            "no texts were found: apt's lists have descriptions after apt-get -o Acquire::Languages=en update; "
            "texts='[\"docstrings\"]' needs Python's library alone"
        )
    return best, source


def embedded_pairs(pairs: Sequence[TextPair], folder: Path, *, longest: int, queries: int | None = None) -> Path:
    """A file with ``documents``, ``queries``, ``texts`` and ``groups`` of pairs, named by the digest of the texts.

    Parameters
    ----------
    pairs : sequence of (group, short text, long text)
    folder : Path
        Where it is kept: the same texts are embedded once.
    longest : int
        Tokens after which a text is cut.
    queries : int, optional
        Short texts to embed; all by default.

    Returns
    -------
    Path
        ``.npz``: embeddings of length 1 of long and short texts, the short texts, and the groups.
    """
    shorts, longs = [pair[1] for pair in pairs][:queries], [pair[2] for pair in pairs]
    path = folder / f"own_texts_{len(pairs)}_{digest(*shorts, *longs, str(longest), length=12)}.npz"
    if not path.exists():
        vectors = embed([*shorts, *longs], longest=longest)
        n = len(shorts)
        groups = np.array([pair[0] for pair in pairs])
        with atomic_write(path) as file:
            np.savez(file, queries=vectors[:n], documents=vectors[n:], texts=np.array(shorts), groups=groups)
    return path


def _stanzas(pattern: str) -> Iterator[dict[str, str]]:
    """Fields of the entries of apt's lists, which apt itself decompresses."""
    helper = Path("/usr/lib/apt/apt-helper")
    for path in sorted(Path("/var/lib/apt/lists").glob(pattern)) if helper.exists() else ():
        read = subprocess.run([helper, "cat-file", path], capture_output=True, check=True)
        for stanza in read.stdout.decode("utf-8", "replace").split("\n\n"):
            parts = re.split(r"\n(?=\S)", stanza.strip("\n"))
            fields = dict(part.split(": ", 1) for part in parts if ": " in part)
            if "Package" in fields:
                yield fields


def _modules(root: Path) -> list[Path]:
    """Files of the library in the order of their names; skipped folders (installed packages!) are not entered."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(_SKIPPED)]
        found += [Path(folder, name) for name in names if name.endswith(".py") and not name.startswith(_SKIPPED)]
    return sorted(found)


def _repeats(words: frozenset[str], known: list[frozenset[str]]) -> bool:
    """Whether a body shares most of its words with an earlier one; sizes rule most of them out."""
    low, high = 0.8 * len(words), 1.25 * len(words)
    near = (other for other in known if low < len(other) < high)
    return any(len(words & other) > 0.8 * len(words | other) for other in near)


Scorer = Callable[[attsvm.AttentionProblem], FloatArray]


def _rest(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Right candidates (n, d) and the others (n, T - 1, d)."""
    rows = np.arange(problem.n)
    others = np.arange(problem.T) != y[:, None]
    X = problem.X.astype(np.float64, copy=False)
    return X[rows, y], X[others].reshape(problem.n, problem.T - 1, -1)


def _weights(features: FloatArray, C: float) -> FloatArray:
    """LinearSVC (squared hinge) on differences that should be positive, given with both signs in turn."""
    from sklearn.svm import LinearSVC

    sign = np.where(np.arange(len(features)) % 2, 1.0, -1.0)
    model = LinearSVC(C=C, fit_intercept=False, dual=False).fit(features * sign[:, None], sign)
    return np.asarray(model.coef_[0], dtype=np.float64)


def linear_svc_diagonal(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], C: float) -> FloatArray:
    """Diagonal W by scikit-learn's LinearSVC on products ``x * z``."""
    right, others = _rest(problem, y)
    return np.diag(_weights(((right[:, None] - others) * problem.Z[:, None]).reshape(-1, problem.dx), C))


def linear_svc_pairs(
    problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], C: float, *, dimensions: int, scale: float
) -> FloatArray:
    """W = a I + P M P' by LinearSVC on pair features of the leading directions P, and the cosine times ``scale``.

    All 147,456 pair features of d = 384 do not fit into memory; the cosine is one more feature, so that it can be kept.
    """
    right, others = _rest(problem, y)
    P = _leading(np.concatenate([problem.Z, right]), dimensions)[1]
    apart = (right[:, None] - others).reshape(-1, problem.dx)
    asked = np.repeat(problem.Z, problem.T - 1, axis=0)
    pairs = ((apart @ P)[:, :, None] * (asked @ P)[:, None]).reshape(len(apart), -1)
    cosine = scale * (apart * asked).sum(axis=1, keepdims=True)
    w = _weights(np.concatenate([pairs, cosine], axis=1), C)
    W = w[-1] * scale * np.eye(problem.dx) + P @ w[:-1].reshape(P.shape[1], -1) @ P.T
    return np.asarray(W)


def triplet_adapter(
    problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], *, steps: int, margin: float, lr: float, seed: int
) -> FloatArray:
    """W of a linear map of the queries, started at the identity, by Adam on a triplet hinge of cosines."""
    import torch

    from attsvm.training.optimizers import gradient_step

    torch.manual_seed(seed)
    right, others = (torch.tensor(part, dtype=torch.float32) for part in _rest(problem, y))
    queries = torch.tensor(problem.Z, dtype=torch.float32)
    W = torch.eye(problem.dx, problem.dz, requires_grad=True)
    optimizer = torch.optim.Adam([W], lr=lr)
    for _ in range(steps):
        batch = torch.randint(len(queries), (256,))
        asked = torch.nn.functional.normalize(queries[batch] @ W.T, dim=-1)
        lead = ((right[batch][:, None] - others[batch]) * asked[:, None]).sum(-1)
        gradient_step(optimizer, torch.relu(margin - lead).mean())
    return np.asarray(W.detach().double().numpy())


def metric_learning(
    problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], method: str, *, dimensions: int, seed: int
) -> Scorer:
    """Scorer by metric-learn after a projection on the leading directions: minus the learned distances.

    Parameters
    ----------
    method : {"ITML", "LSML"}
        From (query, document) pairs with the nearest wrong document as the far one, or from comparisons: the right
        document nearer than each wrong one.
    """
    from metric_learn import ITML, LSML

    right, others = _rest(problem, y)
    mean, basis = _leading(np.concatenate([problem.Z, right]), dimensions)
    near = (np.stack([problem.Z, right], axis=1) - mean) @ basis
    far = (np.stack([problem.Z, others[:, 0]], axis=1) - mean) @ basis
    with _translated():
        if method == "ITML":
            model = ITML(random_state=seed, max_iter=200).fit(
                np.concatenate([near, far]), np.repeat([1, -1], problem.n)
            )
        else:
            model = LSML(random_state=seed, max_iter=200).fit(np.concatenate([near, far], axis=1))
    M = basis @ model.get_mahalanobis_matrix() @ basis.T

    def scorer(other: attsvm.AttentionProblem) -> FloatArray:
        gaps = other.X - other.Z[:, None]
        return np.asarray(-((gaps @ M) * gaps).sum(axis=-1))

    return scorer


def _leading(points: FloatArray, dimensions: int) -> tuple[FloatArray, FloatArray]:
    """Mean and leading directions (d, k) of points."""
    mean = points.mean(axis=0)
    return mean, np.linalg.svd(points - mean, full_matrices=False)[2][:dimensions].T


@contextmanager
def _translated() -> Iterator[None]:
    """metric-learn 0.7 asks scikit-learn for ``force_all_finite``, which was renamed and then removed (1.8)."""
    from metric_learn import _util as util

    checks = {name: getattr(util, name) for name in ("check_array", "check_X_y")}

    def translated(check: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, force_all_finite: Any = True, **options: Any) -> Any:
            return check(*args, ensure_all_finite=force_all_finite, **options)

        return call

    for name, check in checks.items():
        setattr(util, name, translated(check))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of its other calls into scikit-learn
            yield
    finally:
        for name, check in checks.items():
            setattr(util, name, check)


# Documents above this cosine are copies: texts that agree as far as the model reads them.
SAME = 0.999


def hard_negatives(queries: FloatArray, documents: FloatArray, count: int) -> tuple[attsvm.AttentionProblem, IntArray]:
    """Tasks of each query: its own document and the nearest others by cosine, at random places (seeded by size).

    Examples
    --------
    >>> problem, y = hard_negatives(np.eye(4), np.eye(4), 2)
    >>> problem.X.shape, bool(np.allclose(problem.X[np.arange(4), y], np.eye(4)))
    ((4, 3, 4), True)
    """
    n = len(queries)
    near = queries @ documents.T
    near[documents @ documents.T > SAME] = -np.inf  # its own, and copies of it that no score can tell apart
    others = np.argsort(-near, axis=1, kind="stable")[:, :count]
    rng = np.random.default_rng(n)
    y = rng.integers(count + 1, size=n)
    index = np.empty((n, count + 1), dtype=np.int64)
    place = np.arange(count + 1) != y[:, None]
    index[place] = others.ravel()
    index[~place] = np.arange(n)
    return attsvm.AttentionProblem(documents[index], Z=queries), y


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries (n, d), their documents (n, d) and modules (n,)."""

    queries: FloatArray
    documents: FloatArray
    modules: npt.NDArray[Any]

    def parted(self, rng: np.random.Generator) -> tuple[Asked, Asked]:
        """The rest, and a random third of the modules."""
        names = np.unique(self.modules)
        held = np.isin(self.modules, rng.permutation(names)[: len(names) // 3])
        return self._where(~held), self._where(held)

    def _where(self, chosen: npt.NDArray[np.bool_]) -> Asked:
        return Asked(self.queries[chosen], self.documents[chosen], self.modules[chosen])

    def tasks(self, negatives: int) -> tuple[attsvm.AttentionProblem, IntArray]:
        """As tasks with labels."""
        return hard_negatives(self.queries, self.documents, negatives)


@dataclass(frozen=True, eq=False)
class Split:
    """Training modules, with their tasks and labels, and what a way of learning may depend on besides."""

    train: Asked
    negatives: int
    seed: int

    @property
    def tasks(self) -> tuple[attsvm.AttentionProblem, IntArray]:
        """Tasks and labels of the training modules."""
        return self.train.tasks(self.negatives)

    @property
    def inner(self) -> tuple[tuple[attsvm.AttentionProblem, IntArray], tuple[attsvm.AttentionProblem, IntArray]]:
        """The training modules parted once more: tasks to fit and tasks to choose by."""
        fit, choose = self.train.parted(np.random.default_rng([self.seed, 1]))
        return fit.tasks(self.negatives), choose.tasks(self.negatives)


# What a way of learning gives: a scorer, and what there is to say of it.
Learned = tuple[Scorer, dict[str, Any]]

Way = Callable[[Split], Learned]


def _bilinear(W: FloatArray) -> Scorer:
    return lambda problem: attsvm.attention.logits(problem, W)


def _selector(**options: Any) -> AttentionSelector:
    return AttentionSelector(**({"loss": "squared_hinge", "slack": "row"} | options))


def _fit(**options: Any) -> Way:
    def way(split: Split) -> Learned:
        fitted = _selector(**options).fit(*split.tasks)
        return fitted.decision_function, _told(fitted)

    return way


def _told(fitted: AttentionSelector) -> dict[str, Any]:
    return {"rank": int(fitted.edit_.rank), "gap": float(fitted.edit_.certificate.gap)}


def _cut(rank: int, prior: float, **options: Any) -> Way:
    """The change from the prior, cut to its leading directions."""

    def way(split: Split) -> Learned:
        fitted = _selector(prior=prior, **options).fit(*split.tasks)
        left, values, right = np.linalg.svd(fitted.edit_.change, full_matrices=False)
        W = prior * np.eye(len(left)) + (left[:, :rank] * values[:rank]) @ right[:rank]
        return _bilinear(W), {"rank": min(rank, len(values))}

    return way


def _chosen(priors: list[float], penalties: list[float]) -> Way:
    """Prior and penalty with the best MRR on a third of the training modules, then fitted on all of them."""

    def way(split: Split) -> Learned:
        fit, choose = split.inner
        tried = {
            (prior, C): mean_reciprocal_rank(_selector(C=C, prior=prior).fit(*fit), *choose)
            for prior in priors
            for C in penalties
        }
        prior, C = max(tried, key=lambda pair: tried[pair])
        fitted = _selector(C=C, prior=prior).fit(*split.tasks)
        return fitted.decision_function, {**_told(fitted), "chosen": f"{prior:g} I, C = {C:g}"}

    return way


def _triplet(steps: int) -> Way:
    def way(split: Split) -> Learned:
        W = triplet_adapter(*split.tasks, steps=steps, margin=0.1, lr=3e-4, seed=split.seed)
        return _bilinear(W), {}

    return way


def _metric(method: str, dimensions: int) -> Way:
    return lambda split: (
        metric_learning(*split.tasks, method, dimensions=dimensions, seed=split.seed), {},
    )  # fmt: skip


def ways(s: Mapping[str, Any]) -> dict[str, Way]:
    """Every way of scoring, by its label.

    Examples
    --------
    >>> from attsvm.validation.figures.own.fit_studies import FIGURE_RETRIEVAL
    >>> list(ways(FIGURE_RETRIEVAL.quick))[0]
    'cosine'
    """
    c, C, k = s["prior"], s["C"], s["directions"]
    found: dict[str, Way] = {
        "cosine": lambda split: (_bilinear(np.eye(split.train.queries.shape[1])), {}),
        "hard margin from nothing": _fit(C=None),
        f"hard margin around {2 * c:g} I": _fit(C=None, prior=2 * c),
        f"squared hinge from nothing, C = {C:g}": _fit(C=C),
        f"squared hinge around {c:g} I, C = {C:g}": _fit(C=C, prior=c),
        "LinearSVC on products (diagonal W)": lambda split: (
            _bilinear(linear_svc_diagonal(*split.tasks, s["svc_C"])), {},
        ),
        f"LinearSVC on pairs of {k} directions and cosine": lambda split: (
            _bilinear(linear_svc_pairs(*split.tasks, C, dimensions=k, scale=c)), {},
        ),
        "triplet loss, torch": _triplet(s["steps"]),
    }  # fmt: skip
    if s["low_rank"]:
        found[f"the change around {c:g} I cut to rank {s['low_rank']}"] = _cut(s["low_rank"], c, C=C)
    if s["priors"]:
        found["squared hinge around c I, c and C chosen"] = _chosen(s["priors"], s["penalties"])
    if s["nuclear_C"]:
        found[f"nuclear norm around {c:g} I, C = {s['nuclear_C']:g}"] = _fit(norm="nuclear", C=s["nuclear_C"], prior=c)
    for method in s["metric_learn"]:
        found[f"metric-learn, {method}, {k} directions"] = _metric(method, k)
    return found


def measured(way: Way, split: Split, test: Asked) -> dict[str, Any]:
    """Recall@1 and MRR on held-out modules, recall@1 in training, seconds, and what the way told."""
    start = time.process_time()
    scorer, told = way(split)
    seconds = time.process_time() - start
    tasks, truth = test.tasks(split.negatives)
    scores = scorer(tasks)
    problem, y = split.tasks
    return {
        "recall": float(np.mean(scores.argmax(axis=1) == truth)),
        "mrr": mean_reciprocal_rank(_Fixed(scores), tasks, truth),
        "train": float(np.mean(scorer(problem).argmax(axis=1) == y)),
        "seconds": seconds,
        "tasks": len(y),
        **told,
    }


class _Fixed:
    """Something with scores, for the scorers of `attsvm.sklearn`."""

    def __init__(self, scores: FloatArray) -> None:
        self.scores = scores

    def decision_function(self, _: Any) -> FloatArray:
        return self.scores
