"""What was read from the catalog, kept as long as nothing that recipients see was written.

What ends by time alone, like a token or a grant, carries its end: nothing here knows of time, but whoever makes a cache
can say what of it is over.
"""

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from lakeshare_server.catalog.database import Catalog

ENTRIES = 4096

Value = TypeVar("Value")


class GenerationCache(Generic[Value]):
    """Values by key, all of one generation of the catalog; safe from any thread.

    `generation` is that of `Catalog.generation()` where the caller has asked it already for this request. A value that
    `is_over` is looked up again.
    """

    def __init__(
        self, catalog: Catalog, entries: int = ENTRIES, is_over: Callable[[Value], bool] | None = None
    ) -> None:
        self.catalog, self.entries = catalog, entries
        self._is_over = is_over or _never
        # Replaced as a whole: a reader without the lock sees a number and the values that belong to it.
        self._held: tuple[int, dict[Hashable, Value]] = (-1, {})
        self._turn = threading.Lock()

    def peek(self, key: Hashable, generation: int | None = None) -> Value | None:
        """The value if it is here and still true; never loads, so it is fit for an event loop."""
        now = self.catalog.generation() if generation is None else generation
        return self._known(key, now)

    def get(self, key: Hashable, load: Callable[[], Value], generation: int | None = None) -> Value:
        """The value, loaded when it is not here. None is not kept: invented names fill nothing."""
        # Read before loading: a write in between makes the entry's number old, never its value.
        now = self.catalog.generation() if generation is None else generation
        found = self._known(key, now)
        if found is not None:
            return found
        loaded = load()
        if loaded is not None:
            self._keep(now, key, loaded)
        return loaded

    def _known(self, key: Hashable, generation: int) -> Value | None:
        held, values = self._held
        found = values.get(key) if held == generation else None
        return None if found is None or self._is_over(found) else found

    def _keep(self, generation: int, key: Hashable, value: Value) -> None:
        with self._turn:
            held, values = self._held
            if generation < held:
                return
            if generation > held:
                values = {}
                self._held = (generation, values)
            if len(values) >= self.entries and key not in values:
                del values[next(iter(values))]
            values[key] = value


def _never(_value: object) -> bool:
    return False
