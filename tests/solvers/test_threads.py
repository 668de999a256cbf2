"""Thread limits: nested, at the same time, and after Ctrl-C; in a process of its own, where two threads are allowed."""

import os
import subprocess
import sys
import textwrap

START = """
import signal, threading, time
import numpy as np, torch
from threadpoolctl import threadpool_info
import attsvm

def blas():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

torch.set_num_threads(2)
attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0))
before = blas()
assert before == {2}, before
"""


def run(body):
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    environment |= {"OPENBLAS_NUM_THREADS": "2"}  # also on a machine of one core
    code = textwrap.dedent(START) + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_limits_nest_overlap_and_leave_what_was_there():
    run("""
    from attsvm.solvers.threads import blas_threads
    from attsvm.training.tensors import torch_threads
    cpu = torch.device("cpu")
    seen = []
    with blas_threads(10), torch_threads(cpu):
        with blas_threads(10), torch_threads(cpu):
            assert blas() == {1} and torch.get_num_threads() == 1
        assert blas() == {1} and torch.get_num_threads() == 1
        # a thread that first meets torch meanwhile keeps its own number
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start(); thread.join()
    assert blas() == {2} and torch.get_num_threads() == 2 and seen == [2], seen

    problem = attsvm.random_problem(n=6, T=8, d=10, seed=0)
    batch = attsvm.random_problem(n=3, T=4, d=5, seed=0, batch=4)
    left = []
    def work(k):
        attsvm.att_svm(problem)
        attsvm.att_svm(batch, norm="nuclear")
        attsvm.train(problem, steps=20 + 15 * k)
        left.append(torch.get_num_threads())
    for _ in range(5):
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert blas() == {2} and torch.get_num_threads() == 2, (blas(), torch.get_num_threads())
    assert left == [2] * 20, left
    """)


def test_an_interrupt_restores_every_pool():
    run("""
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=0)
    rng = np.random.default_rng(0)
    attsvm.train(problem, steps=2), attsvm.att_svm(problem, norm="nuclear")  # Python drops interrupts inside imports
    signal.signal(signal.SIGALRM, signal.default_int_handler)  # the alarm is our Ctrl-C; it comes again if dropped
    late = 0
    for work in (lambda: attsvm.train(problem, steps=10**6), lambda: attsvm.att_svm(problem, norm="nuclear")):
        for _ in range(40):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.001, 0.03), 2.0)
                while True:
                    work()
            except KeyboardInterrupt:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            if blas() != {2} or torch.get_num_threads() != 2:  # the first instruction of a function cannot be guarded
                late += 1
                attsvm.train(problem, steps=2), attsvm.att_svm(problem, norm="nuclear")  # the next call puts it right
            assert blas() == {2} and torch.get_num_threads() == 2, (blas(), torch.get_num_threads())
    assert late <= 2, late
    """)
