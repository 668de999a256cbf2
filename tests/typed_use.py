"""A user's file: every public function called and its result used, under mypy --strict without a cast.

`make types` checks it; `tests/test_typed_use.py` runs it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import attsvm
from attsvm.comparison import BatchReport
from attsvm.solvers import (
    CertificateBatch,
    MarginProblem,
    MarginProblemBatch,
    MarginSolution,
    MarginSolutionBatch,
    certify,
    solve,
)

Floats = npt.NDArray[np.float64]


def solved(problem: attsvm.AttentionProblem) -> tuple[float, float, int]:
    sol = attsvm.att_svm(problem, norm="nuclear")
    W: Floats = sol.W
    certificate: attsvm.Certificate = sol.certificate
    gap: float = certificate.gap
    status: attsvm.Status = sol.status
    sets = attsvm.gen_svm(problem, [[0, 1]] * problem.n)
    every = attsvm.satt_svm(problem, None, norm="frobenius")
    grid = (problem.n, problem.T)
    finite = attsvm.finite_part(problem, np.full(grid, 1 / problem.T), attsvm.SelectedSets(np.ones(grid, dtype=bool)))
    again: float = attsvm.verify(problem, W, norm="nuclear").gap
    assert status.has_solution and sets.norm >= 0 and every.norm >= 0 and finite.margin >= 0
    return gap + again, sol.margin, sol.rank


def together() -> Floats:
    batch: attsvm.ProblemBatch = attsvm.random_problem(n=2, T=3, d=4, batch=3, seed=0)
    sols: attsvm.SolutionBatch = attsvm.att_svm(batch)
    optimal: npt.NDArray[np.bool_] = np.asarray(sols.status == "optimal")
    first: attsvm.Solution = sols[0]
    local: npt.NDArray[np.bool_] = attsvm.is_locally_optimal(batch)
    sets: attsvm.SolutionBatch = attsvm.gen_svm(batch, np.ones((3, 2, 3), dtype=bool))
    every: attsvm.SolutionBatch = attsvm.satt_svm(batch, norm="nuclear")
    finite: attsvm.SolutionBatch = attsvm.finite_part(batch, np.full((3, 2, 3), 1 / 3), np.ones((3, 2, 3), dtype=bool))
    report: BatchReport = attsvm.compare(attsvm.train(batch, steps=20), sols)
    assert optimal.all() and first.norm > 0 and local.shape == (3,)
    assert len(sets) == len(every) == len(finite) == 3 and repr(report)
    norms: Floats = sols.norm
    return norms


def margin_problems() -> float:
    one: MarginProblem = MarginProblem(np.eye(2), [[1.0]], [0, 0])
    alone: MarginSolution = solve(one)
    norm: float = alone.norm
    steps: int = alone.iterations
    reason: str = alone.reason
    batch: MarginProblemBatch = MarginProblem.stack([one, one])
    solved: MarginSolutionBatch = solve(batch, "nuclear")
    norms: Floats = solved.norm
    certificate: CertificateBatch = certify(batch, solved.W, solved.multipliers)
    gaps: Floats = certificate.gap
    rank: int | None = solved[0].certificate.rank
    again = solve(batch[0].soft(C=1.0))
    assert steps >= 0 and reason and gaps.shape == (2,) and rank == 1 and solved.extras.rescued.shape == (2,)
    return norm + float(norms.sum()) + again.certificate.primal_value


def listed(problem: attsvm.AttentionProblem) -> tuple[bool, int]:
    local: bool = attsvm.is_locally_optimal(problem)
    found = attsvm.locally_optimal_selections(problem)
    graph = attsvm.selection_graph(problem)
    cone: float = attsvm.separating_cone(problem).value(np.eye(problem.dx))
    assert cone == cone
    return local and found.complete, graph.number_of_nodes()


def counted(trials: int, seed: int, d: int) -> dict[str, Floats]:
    return {"margin": attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=d, batch=trials, seed=seed)).margin}


def swept() -> Floats:
    done = attsvm.sweep(counted, {"d": [4]}, trials=2, chunk=2, workers=0, store=":memory:")
    margins: Floats = done.columns[0]["margin"]
    return margins


def soft() -> int:
    problem, selection = attsvm.structured_problem(n=2, T=4, d=6, seed=0)
    chosen: attsvm.Selection = selection
    path = attsvm.soft_path(problem, [0.1, 1.0], chosen)
    return len(path)


def following_tokens() -> float:
    svm: attsvm.next_token.GraphSolution = attsvm.next_token.graph_svm([[0, 1, 2, 0]], np.eye(3))
    W: Floats = svm.W
    return float(np.abs(W).max())


def classes() -> float:
    samples = np.eye(3)
    svm: attsvm.multiclass.MulticlassSolution = attsvm.multiclass_svm(samples, ["a", "b", "c"], norm="spectral", C=1.0)
    run: attsvm.multiclass.MulticlassRun = attsvm.multiclass.train(samples, [0, 1, 2], steps=10, batch_size=1)
    W: Floats = svm.W
    return float(np.abs(W).max() + run.angles(svm)[-1] + run.margins("linf")[-1])


def other_heads(problem: attsvm.AttentionProblem) -> tuple[float, int]:
    relu = replace(problem, head=attsvm.ReluHead(np.ones((problem.dx, 2))))
    concave = replace(problem, head=attsvm.ConcaveHead(np.ones(problem.dx), 0.5))
    layer = attsvm.TrainedHead.from_weights(np.eye(2, problem.dx), np.eye(2, problem.dz))
    best: float = max(float(relu.scores().max()), float(concave.scores().max()))
    return best, layer.W.shape[0]


def trained(problem: attsvm.AttentionProblem, folder: Path) -> str:
    run: attsvm.Run = attsvm.train(problem, steps=50, loss=attsvm.logistic)
    options: attsvm.TrainOptions = run.options
    report: attsvm.Report = attsvm.compare(run, attsvm.att_svm(problem))
    path = attsvm.regularization_path(problem, [1.0, 10.0])
    parts = attsvm.decompose(problem, run.W)
    diagnosis = attsvm.diagnose(problem, loss=attsvm.exponential)
    reached = attsvm.attraction(problem, starts=2, steps=20)
    weights: Floats = attsvm.attention.probabilities(problem, run.W)
    attsvm.save_problem(problem, folder / "problem.npz")
    back: attsvm.AttentionProblem = attsvm.load_problem(folder / "problem.npz")
    attsvm.write_report(back, folder / "report.html", steps=20)
    loss: attsvm.Loss = attsvm.correlation_loss
    assert options.steps == 50 and weights.shape[-1] == problem.T
    return f"{report!r} {path!r} {parts!r} {diagnosis!r} {reached!r} {loss!r}"


def definitions(problem: attsvm.AttentionProblem, folder: Path) -> int:
    solution = attsvm.att_svm(problem)
    low, high = attsvm.low_score_tokens(problem), attsvm.high_score_tokens(problem)
    support = attsvm.support_indices(solution)
    first = next(iter(attsvm.iter_locally_optimal(problem)))
    start: Floats = attsvm.cone_init(solution.W, 1.0)
    smooth: float = float(attsvm.smoothness_constant(problem, attsvm.get_loss("logistic")))
    pair: attsvm.joint.JointSolution = attsvm.joint.joint_svm(problem)
    try:
        missing = attsvm.load_problem(folder / "no_problem.npz")
        raise AssertionError(repr(missing))
    except (attsvm.ProblemFileError, FileNotFoundError) as error:
        assert str(error)
    assert low is not None and high is not None and support is not None and first.margin > 0
    assert start.shape == solution.W.shape and smooth > 0 and repr(pair)
    return len(support)


def real(head: attsvm.TrainedHead, problem: attsvm.AttentionProblem) -> tuple[float, int]:
    changed = attsvm.edit(head, problem, np.zeros(problem.n, dtype=np.int64), norm="nuclear")
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    table = attsvm.probe(model, torch.randn(2, 4, 8), svm=None, removal=0)
    captured, seen = attsvm.capture(model, torch.randn(2, 4, 8), layer=0, head=1)
    own: Floats = captured.W
    assert own.shape == (seen.dx, seen.dz) and captured.module == "layers.0.self_attn"
    with attsvm.Monitor(model, every=1) as monitor:
        model(torch.randn(2, 4, 8))
        monitor.step()
    dimensions = attsvm.key_dimension(head, problem, of="keys", ranks=[1])
    smaller: attsvm.TrainedHead = dimensions.head
    proof: attsvm.Certificate = dimensions.certificate
    assert smaller.d_head == dimensions.rank >= dimensions.least and proof.gap < 1 and dimensions.table.rows
    relative: float = changed.relative_norm
    return relative, len(table) + len(monitor.history)


def others(W: Floats) -> int:
    score = attsvm.dynamics.polarization.sink_score(np.full((1, 1, 1, 5, 5), 0.2))
    fitted = attsvm.sklearn.AttentionSelector(norm="nuclear")
    K, Q = attsvm.export.factor(W)
    assert float(score[0, 0]) > 0 and fitted is not None
    return len(K) + len(Q)


def programs(problem: attsvm.AttentionProblem) -> float:
    model = attsvm.cvxpy_model(problem)
    model.problem.solve(solver="CLARABEL")
    solution: attsvm.Solution = model.solution()
    X, Z = torch.tensor(problem.X), torch.tensor(problem.Z, requires_grad=True)
    try:
        margin: torch.Tensor = attsvm.torch.margin(X, Z, problem.optimal_tokens())
    except attsvm.DegenerateError as error:
        raise AssertionError(str(error)) from error
    return abs(solution.margin - float(margin.detach()))


def patched(folder: Path) -> float:
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(20, 6))
    found = attsvm.patch(documents[:3], documents, [(0, 5)], [(2, 2)])
    again = attsvm.load_patch(found.save(folder / "patch.npz"))
    query_map: Floats = again.query_map
    return float(np.abs(query_map - found.query_map).max())


def main(folder: Path) -> None:
    problem = attsvm.AttentionProblem(
        np.eye(3)[None].repeat(2, axis=0), [1, -1], np.eye(2, 3), attsvm.LinearHead([1.0, 0.5, 0.2])
    )
    assert problem.optimal_tokens() == attsvm.Selection([0, 2])
    try:
        assert solved(attsvm.random_problem(n=2, T=3, d=4, seed=0))[0] < 1e-6
    except (attsvm.InfeasibleError, attsvm.NoSolutionError, attsvm.ConvergenceWarning) as error:
        raise AssertionError(str(error)) from error
    assert (
        soft() == 2
        and following_tokens() + classes() > 0
        and swept().shape == (2,)
        and other_heads(problem)[1] == problem.dx
    )
    assert together().min() > 0 and margin_problems() > 0 and others(np.eye(2)) == 4
    rng = np.random.default_rng(0)
    head = attsvm.TrainedHead.from_weights(rng.normal(size=(2, 4)), rng.normal(size=(2, 4)))
    assert real(head, attsvm.random_problem(n=2, T=3, d=4, seed=0))[1] == 3
    assert listed(attsvm.random_problem(n=2, T=3, d=4, seed=0))[1] > 0
    assert programs(attsvm.random_problem(n=2, T=3, d=4, seed=0)) < 1e-6 and patched(folder) == 0
    assert definitions(attsvm.random_problem(n=2, T=3, d=4, seed=0), folder) > 0
    assert trained(attsvm.random_problem(n=2, T=3, d=4, seed=0), folder)
