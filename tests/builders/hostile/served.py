"""The finished matrix behind a real server, from the disk or from a bucket, with the readers of both kinds."""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pandas as pd

from lakeshare_server.catalog import FollowedTables
from tests.builders.delta_log import commit
from tests.builders.hostile.on_s3 import relocated
from tests.builders.hostile.place import HostileTable
from tests.builders.protocol_lines import Format
from tests.builders.protocol_reader import ALL_FEATURES, ProtocolReader
from tests.builders.sharing import Provider, a_provider, a_server

SHARE = "hostile"
CLIENT_FEATURES = frozenset({"deletionVectors", "columnMapping", "timestampNtz"})
"""What the Python client announces for snapshots."""
NEVER_S = 3600.0
"""Between two looks for new versions: nothing is added to the matrix while it is read."""


@dataclass(frozen=True)
class Served:
    """A share with every table of the matrix."""

    store: str
    provider: Provider
    tables: Mapping[str, HostileTable]
    """As they are served."""
    local: Mapping[str, Path]
    """Where the same tables lie on the disk, to read their logs without the server."""
    profile: Path
    client: httpx.Client
    """With the recipient's token."""
    data: httpx.Client
    """Without any."""

    def url(self, name: str) -> str:
        """A table as the Python client is told of it."""
        return f"{self.profile}#{SHARE}.lake.{name}"

    def relocation(self, name: str) -> Callable[[str], str]:
        """How paths of a local log are served: absolute ones are others in a bucket."""
        root = str(self.local[name].parent)
        return str if self.store == "disk" else lambda path: relocated(path, root)

    def keeps_commit_times(self, name: str) -> bool:
        """Whether commits have the times that Spark saw: a copy's files are younger, unless the log has the times."""
        if self.store == "disk":
            return True
        first = commit(self.local[name], 0)[0].get("commitInfo", {}) if "in_commit" in name else {}
        return "inCommitTimestamp" in first

    def reader(self, name: str, fmt: Format, features: frozenset[str] = ALL_FEATURES) -> ProtocolReader:
        """Our own reader of a table."""
        return ProtocolReader(self.client, f"{SHARE}.lake.{name}", fmt, self.data, features)


@contextmanager
def serving(
    store: str, tables: Mapping[str, HostileTable], local: Mapping[str, Path], folder: Path, **settings: Any
) -> Iterator[Served]:
    """Follow every table, share all of them with one recipient and serve them."""
    provider = a_provider(folder, **settings)
    followed = FollowedTables(provider.catalog)
    for name, table in tables.items():
        followed.add(f"lake.{name}", table.location, NEVER_S)
    provider.share(*(f"lake.{name}" for name in tables), share=SHARE)
    token = provider.recipient(shares=(SHARE,))
    with a_server(provider) as running, running.client(token) as client, httpx.Client(timeout=30) as data:
        yield Served(store, provider, tables, local, running.profile(token), client, data)


def quietly(read: Callable[..., pd.DataFrame], *given: Any, **options: Any) -> pd.DataFrame:
    """A frame of the Python client, which prints."""
    with redirect_stdout(io.StringIO()):
        return read(*given, **options)
