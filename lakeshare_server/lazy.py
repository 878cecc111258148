"""Modules that are imported at their first use, so that commands start fast and optional libraries stay optional."""

from importlib import import_module
from typing import Any


class LazyModule:
    """A module that is imported when one of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
