"""The recorded matrix behind a real server, from the disk or from a bucket, with the readers of both kinds."""

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pandas as pd

from lakeshare_server.catalog import FollowedTables
from tests.builders.canonical import Rows
from tests.builders.delta_log import commit
from tests.builders.hostile.on_s3 import relocated
from tests.builders.hostile.place import TABLES, Hostile, HostileTable
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
    """A share with tables of the matrix."""

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

    def table(self, name: str) -> "ServedTable":
        return ServedTable(self, TABLES[name], self.tables[name], self.local[name])


@dataclass(frozen=True)
class ServedTable:
    """One table of the matrix: its plan, what Spark read of it, and its readers."""

    served: Served
    plan: Hostile
    judged: HostileTable
    place: Path
    """Where it lies on the disk, to read its log without the server."""
    readers: dict[tuple[Format, frozenset[str]], ProtocolReader] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> str:
        """The table's name below the share's server."""
        return f"{SHARE}.lake.{self.plan.name}"

    @property
    def url(self) -> str:
        """A table as the Python client is told of it."""
        return f"{self.served.profile}#{self.path}"

    @property
    def newest_rows(self) -> Rows:
        """What Spark reads of the newest version."""
        return self.judged.rows(self.judged.latest)

    @property
    def client(self) -> httpx.Client:
        """With the recipient's token."""
        return self.served.client

    def relocated(self, path: str) -> str:
        """A path of the local log as it is served: absolute ones are others in a bucket."""
        return path if self.served.store == "disk" else relocated(path, str(self.place.parent))

    @property
    def keeps_commit_times(self) -> bool:
        """Whether commits have the times that Spark saw: a copy's files are younger, unless the log has the times."""
        if self.served.store == "disk":
            return True
        first = commit(self.place, 0)[0].get("commitInfo", {}) if "in_commit" in self.plan.name else {}
        return "inCommitTimestamp" in first

    def reader(self, fmt: Format, features: frozenset[str] = ALL_FEATURES) -> ProtocolReader:
        """Our own reader of the table, the same for each call: it fetches each file once."""
        if (fmt, features) not in self.readers:
            self.readers[fmt, features] = ProtocolReader(
                self.client, self.path, fmt, self.served.data, features
            )
        return self.readers[fmt, features]


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
    with (
        a_server(provider) as running,
        running.client(token) as client,
        httpx.Client(verify=False, timeout=30) as data,
    ):
        yield Served(store, provider, tables, local, running.profile(token), client, data)


def quietly(read: Callable[..., pd.DataFrame], *given: Any, **options: Any) -> pd.DataFrame:
    """A frame of the Python client, which prints."""
    with redirect_stdout(io.StringIO()):
        return read(*given, **options)
