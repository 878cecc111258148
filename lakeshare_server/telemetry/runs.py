"""Steps of runs: each is a span of the run's trace, and its log records have the run's id."""

from collections.abc import Iterator
from contextlib import contextmanager

from lakeshare_server.telemetry.logs import run_scope
from lakeshare_server.telemetry.tracing import Attribute, span


@contextmanager
def run_step(name: str, run_id: str, parent: str | None = None, **attributes: Attribute) -> Iterator[None]:
    """A step of a run, like `stage`; `parent` is the trace of an earlier step, if this is another process."""
    with run_scope(run_id), span(f"lakeshare.{name}", parent, run_id=run_id, **attributes):
        yield
