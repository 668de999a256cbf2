"""An option has one default: that of the command line is that of the Python function behind it."""

import inspect
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path

import pytest

import attsvm
from attsvm.cli import app
from attsvm.files import save_problem
from attsvm.probing import SvmBudget
from attsvm.reports import build_content
from attsvm.validation.figures.figure import Options
from attsvm.validation.ledger.audit import audit, audit_seeds
from attsvm.validation.ledger.mutate import mutations

# The functions that a command calls, and options that go by another name there.
FUNCTIONS = {
    "demo": ([], {}),  # an embedded problem: sizes and seed are chosen for the page
    "new": ([attsvm.random_problem, save_problem], {}),
    "solve": ([attsvm.att_svm], {}),
    "train": ([attsvm.TrainOptions], {}),
    "compare": ([attsvm.TrainOptions, attsvm.compare], {}),
    "enumerate": ([attsvm.locally_optimal_selections], {}),
    "diagnose": ([attsvm.diagnose], {}),
    "report": ([build_content], {}),
    "probe": ([attsvm.probe, SvmBudget], {"length": "max_length", "svm_sequences": "sequences",
                                          "svm_queries": "queries"}),
    "patch": ([attsvm.patch], {}),
    "validate": ([Options], {}),
    "claims": ([audit, audit_seeds, mutations], {}),
    "bench": ([], {}),  # cases are called with all that they take
}  # fmt: skip
# What differs, and why.
EXCEPTIONS = {
    ("solve", "norm"): "repeatable; none given is frobenius",
    ("compare", "parameterization"): "the command trains both, one after the other",
    ("probe", "sequences"): "lines of the text; the sequences of the SVMs are --svm-sequences",
    ("probe", "svm"): "a switch: on is SvmBudget()",
    ("probe", "store"): "a path; none given is ':memory:'",
    # Results do not depend on it, but a script without a main guard cannot start processes; a command can.
    ("probe", "workers"): "one process per core; the function computes in its own",
    ("validate", "workers"): "one process per core; a script computes in its own",
}


def commands():
    return {command.name: command.callback for command in app.registered_commands}


def plain(default):
    if isinstance(default, Enum):
        return default.value
    return str(default) if isinstance(default, Path) else default


def defaults_of(function):
    """Default by parameter; of a class its fields'."""
    if inspect.isclass(function):
        return {f.name: plain(f.default) for f in fields(function) if f.default is not MISSING}
    signature = inspect.signature(function)
    return {name: plain(p.default) for name, p in signature.parameters.items() if p.default is not p.empty}


def differences():
    for name, command in commands().items():
        functions, other_names = FUNCTIONS[name]
        for option, default in defaults_of(command).items():
            if (name, option) in EXCEPTIONS:
                continue
            known = other_names.get(option, option)
            for function in functions:
                ours = defaults_of(function)
                if known in ours and ours[known] != default:
                    yield name, option, default, function.__name__, ours[known]


def test_every_command_is_compared():
    assert set(FUNCTIONS) == set(commands())
    compared = sum(
        FUNCTIONS[name][1].get(option, option) in defaults_of(function)
        for name, command in commands().items()
        for option in defaults_of(command)
        for function in FUNCTIONS[name][0]
    )
    assert compared > 40  # the comparison is not empty


def test_every_exception_is_one():
    for name, option in EXCEPTIONS:
        assert option in defaults_of(commands()[name])


def test_defaults_are_those_of_the_python_functions():
    assert list(differences()) == []


@pytest.mark.parametrize("form", ["W", "KQ"])
def test_the_command_trains_as_the_function_does(attsvm_command, form):
    attsvm_command("new", "p.npz")
    run = attsvm_command("train", "p.npz", "-p", form, "--steps", 40, "--json").record["run"]
    ours = attsvm.train(attsvm.load_problem("p.npz"), form, 40)
    assert run["settings"]["optimizer"] == ours.options.optimizer_name
    assert run["W"] == ours.W.tolist()


def test_the_default_for_factors_comes_closer_to_the_nuclear_direction():
    """The papers' update stops short of it: 18 against 5 degrees here."""
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=1)
    ends = {}
    for name in (None, "normalized_gd"):
        run = attsvm.train(problem, "KQ", 3000, optimizer=name, snapshots=2)
        ends[run.options.optimizer_name] = float(attsvm.compare(run).comparisons[0].angle[-1])
    assert set(ends) == {"ridge_decay", "normalized_gd"}
    assert ends["ridge_decay"] < 6 < 15 < ends["normalized_gd"]


def test_the_default_follows_the_parameterization_of_an_options_object():
    assert (
        attsvm.train(
            attsvm.random_problem(n=2, T=3, d=4, seed=0), "KQ", options=attsvm.TrainOptions(steps=2)
        ).options.optimizer_name
        == "ridge_decay"
    )
    assert attsvm.TrainOptions("KQ", train_head=True).optimizer_name == "normalized_gd"
    assert attsvm.TrainOptions("prompt").optimizer_name == attsvm.TrainOptions().optimizer_name == "normalized_gd"
