"""Imports that let commands start fast and optional libraries stay optional."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when one of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disables GC while many objects are created that all stay, such as modules.

    It took three quarters of the time of reading large files, and a fifth of that of importing the server.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
