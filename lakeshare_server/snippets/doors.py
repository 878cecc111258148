"""The server's doors as they stand for one shared table: what comes through, and how its files are reached."""

from dataclasses import dataclass

from lakeshare_server.access.serveability import ServedTable
from lakeshare_server.snippets.shared_table import Storage
from lakeshare_server.stores import Place
from lakeshare_server.tables.serveability import ICEBERG_REST, Verdict


@dataclass(frozen=True)
class Doors:
    """What recipients get of a table: verdicts by client, and how Iceberg clients get at its files.

    `storage` is None where they do not, and `no_credentials` says why there are none to hand out.
    """

    verdicts: dict[str, Verdict]
    place: Place
    storage: Storage | None
    no_credentials: str | None

    @property
    def iceberg(self) -> Verdict:
        """The verdict of the Iceberg door."""
        return self.verdicts[ICEBERG_REST]


def doors_of(served: ServedTable) -> Doors:
    """The doors to the newest version of a table as the server serves it."""
    verdicts = {one.client: one for one in served.verdicts.values()}
    return Doors(verdicts, served.place, served.storage, served.no_credentials)
