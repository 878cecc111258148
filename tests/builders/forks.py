"""Processes for tests that are killed or work beside this one, forked from a process that has the imports done."""

import multiprocessing
import os
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["tests.builders.killed_run", "great_expectations", "lakeshare_pipelines.backup.copy.spark"]
)


def start_process(target: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Start a process that calls a function with this process's environment."""
    process = FORKS.Process(target=_call, args=(dict(os.environ), target, arguments))
    process.start()
    return process


def set_environment(variables: Mapping[str, str]) -> None:
    """Replace the environment: the process that this one was forked from has that of the test which started it."""
    os.environ.clear()
    os.environ.update(variables)


def _call(environment: Mapping[str, str], target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    set_environment(environment)
    target(*arguments)
