"""Waiting for what happens by itself, like events that come into the database a moment after their replies."""

import time
from collections.abc import Callable

PATIENCE_S = 60
LOOK_S = 0.02


def wait_until(happened: Callable[[], bool], look_s: float = LOOK_S) -> None:
    """Look every `look_s` seconds until it has happened; fails when it never does."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(look_s)
