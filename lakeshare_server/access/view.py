"""A recipient's view of one table: grant, then publication, then the files' index; one place for each.

A request passes here or it gets nothing. What is shared but was never published is not there yet.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lakeshare_server.catalog import Catalog, Ledger, Listings, Publication, Reader, TableEntry
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.tables.index import FileIndex, open_index

OPEN_INDEXES = 64


@dataclass(frozen=True)
class Views:
    """Looks at the catalog for recipients."""

    catalog: Catalog
    index_dir: Path

    def table(self, reader: Reader, share: str, schema: str, table: str) -> TableEntry:
        """A table the recipient was granted.

        Raises:
            NotFound: unknown or not granted, which look the same.
        """
        return Listings(self.catalog, reader.id).table(share, schema, table)

    def publication(self, entry: TableEntry, version: int | None) -> Publication:
        """The publication of a granted table that the recipient reads.

        Raises:
            NotFound: nothing was published yet.
            BadRequest: there is no such version, or the recipient may not read earlier ones.
        """
        if version is None:
            return self._latest(entry)
        at = Ledger(self.catalog).at(entry.lake_table, version) if entry.history else None
        if at is None:
            raise _refusal(entry, version, self._latest(entry))
        return at

    def index(self, publication: Publication) -> FileIndex:
        """The files of a publication.

        Raises:
            Unavailable: the index is gone.
        """
        return _opened(self.index_dir, publication.index_digest)

    def _latest(self, entry: TableEntry) -> Publication:
        latest = Ledger(self.catalog).latest(entry.lake_table)
        if latest is None:
            raise NotFound("[Share/Schema/Table]", entry.path.replace(".", "/"))
        return latest


def _refusal(entry: TableEntry, version: int, latest: Publication) -> BadRequest:
    reason = f"{entry.path} has no such version; its latest is {latest.version}."
    if not entry.history:
        reason = (
            "Reading table by version or timestamp is not supported because history sharing is not enabled "
            f"on table: {entry.path}"
        )
    return BadRequest("version", version, reason)


# What is in an index never changes, so an open one serves every request of the process.
@lru_cache(OPEN_INDEXES)
def _opened(index_dir: Path, digest: str) -> FileIndex:
    return open_index(index_dir, digest)
