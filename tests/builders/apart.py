"""Another process for tests: a process has one Spark and one environment only, and other tests keep theirs.

It imports this module and those of the functions that it is called with, which decide how long it takes to start.
"""

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Apart:
    """Calls functions in one other process, whose JVM is warm from the second call on."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        """What the function returns."""
        return self._pool.submit(function, *arguments).result(timeout=300)


@contextmanager
def process_apart(environment: Mapping[str, str]) -> Iterator[Apart]:
    """The other process, with these variables added to its environment; it ends with the block."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, _add_to_environment, (dict(environment),)) as pool:
        yield Apart(pool)


def _add_to_environment(variables: Mapping[str, str]) -> None:
    # As in tests/conftest.py: modules are no garbage, and little else is.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    os.environ.update(variables)
