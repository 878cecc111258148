"""The providing side as statements need it beside the catalog's transaction: what is published, and its URLs."""

from dataclasses import dataclass
from functools import cached_property

from lakeshare_server.catalog import Catalog, Ledger
from lakeshare_server.errors import BadRequest
from lakeshare_server.settings import ServerSettings
from lakeshare_server.stores import Stores
from lakeshare_server.versions import Versions


@dataclass(frozen=True)
class Provider:
    """Where statements take effect."""

    catalog: Catalog
    settings: ServerSettings

    @property
    def ledger(self) -> Ledger:
        """What is published."""
        return Ledger(self.catalog)

    @cached_property
    def versions(self) -> Versions:
        """What recipients can read of tables: it decides whether their partitions decide a rule."""
        return Versions(self.catalog, self.settings, Stores(self.settings))

    def latest_version(self, table: str) -> int | None:
        """The number that recipients of a table of the lake read now; None before it is published."""
        latest = self.ledger.latest(table)
        return None if latest is None else latest.version

    def tables_of(self, schema: str) -> list[str]:
        """The published tables of a schema of the lake.

        Raises:
            BadRequest: there is none.
        """
        tables = self.ledger.tables()
        found = [table for table in tables if table.lower().startswith(f"{schema.lower()}.")]
        if not found:
            schemas = sorted({table.rpartition(".")[0] for table in tables})
            raise BadRequest(
                "schema", schema, f"Schemas with published tables: {', '.join(schemas) or 'none'}."
            )
        return found

    def require_published(self, table: str, number: int) -> None:
        """See that a table has a publication of this number.

        Raises:
            BadRequest: it has none.
        """
        if self.ledger.at(table, number) is None:
            latest = self.latest_version(table)
            has = "no publication yet" if latest is None else f"none of this number; the latest is {latest}"
            raise BadRequest("publication", number, f"{table} has {has}.")
