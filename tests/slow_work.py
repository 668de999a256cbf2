"""Work for a child process, which finds it by name wherever the tests are collected from."""

import time


def nap(seconds):
    time.sleep(seconds)
    return seconds


def fail(argument):
    raise RuntimeError
