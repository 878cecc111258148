"""A process that looks for new states of a followed table beside others, with few imports so that it starts soon."""

from pathlib import Path
from typing import Any

from lakeshare_server.catalog import open_catalog
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions


def look(state_dir: Path, table: str, go: Any, numbers: Any) -> None:
    """Put the newest number of a table, looked for once the event `go` is set, into a queue."""
    settings = ServerSettings(state_dir=state_dir)
    versions = Versions(open_catalog(settings.catalog_url), settings, Stores(settings)).of(table)
    go.wait(60)
    numbers.put(versions.latest().number)
