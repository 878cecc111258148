"""The server's doors as they stand for one shared table: what comes through, and how its files are reached."""

from dataclasses import dataclass

from lakeshare_server.access.directory import directory_refusal
from lakeshare_server.catalog import TableEntry
from lakeshare_server.signing import Signers
from lakeshare_server.snippets.shared_table import Storage
from lakeshare_server.stores import Place, place_of
from lakeshare_server.stores.locations import LOCAL, S3
from lakeshare_server.tables.index import IndexHeader
from lakeshare_server.tables.serveability import ICEBERG_REST, Verdict, serveability


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


def doors_of(entry: TableEntry, header: IndexHeader, signers: Signers) -> Doors:
    """The doors to the version that an index describes.

    Raises:
        Unavailable: what tells of credentials is not there now.
    """
    verdicts = {one.client: one for one in serveability(header.table_format, header.head)}
    place = place_of(header.location)
    refusal = directory_refusal(entry, header, signers)
    storage: Storage | None = None
    if place.kind == LOCAL:
        storage = "disk"
    elif refusal is None:
        storage = "credentials"
    elif place.kind == S3:
        storage = "signed requests"
    return Doors(verdicts, place, storage, refusal)
