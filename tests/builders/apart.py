"""Another process for tests: a process has one Spark and one environment only, and other tests keep theirs.

It is forked from a process that has the longest imports done (forks.py), which no test has changed.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.builders.forks import FORKS, set_environment

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
    """The other process, with this one's environment and these variables; it ends with the block."""
    variables = {**os.environ, **environment}
    with ProcessPoolExecutor(1, FORKS, _begin, (variables,)) as pool:
        yield Apart(pool)


def _begin(variables: Mapping[str, str]) -> None:
    # As in tests/conftest.py: modules are no garbage, and little else is.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    set_environment(variables)
