"""New numbers of a table that another provider shares: from its feed, or from its version where there is no feed.

The client of Delta Sharing reads the profile and authenticates.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from lakeshare_pipelines.errors import SourceError
from lakeshare_server.errors import Unavailable
from lakeshare_server.lazy import LazyModule
from lakeshare_server.outbound import LATER, Service

if TYPE_CHECKING:
    from delta_sharing import protocol, rest_client
else:
    protocol, rest_client = LazyModule("delta_sharing.protocol"), LazyModule("delta_sharing.rest_client")

RESPONSE_S = 60
ITEMS = 500
# Without a feed of publications, servers answer its path with one of these.
HAS_NO_FEED = frozenset({400, 403, 404, 405, 501})
PASSING = frozenset({429, 500, 502, 503, 504})
CHECK = "Check the profile, its expiry, and the name of the table."

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class TableUpdate:
    """A number of a shared table; time and change of the schema are None if the server has no feed."""

    number: int
    published_at: datetime | None = None
    schema_changed: bool | None = None


@dataclass(frozen=True)
class SharedTableUpdates:
    """The updates of a table, `share.schema.table`, of the server in a profile file.

    Methods raise Unavailable if the server does not answer now, and SourceError if it refuses, or for an unusable
    profile.
    """

    profile: Path
    table: str

    def newest(self) -> int:
        """The number that the server serves now."""
        share, schema, name = self._names()

        def ask(client: Any) -> int:
            version = client.query_table_version(protocol.Table(name, share, schema)).delta_table_version
            return int(version)

        return self._call(ask)

    def since(self, number: int, newest: int) -> list[TableUpdate]:
        """The updates after a number up to `newest`, in order; only `newest` if the server has no feed."""
        listed = self._call(lambda client: self._read_feed(client, number)) or []
        updates = {update.number: update for update in listed if number < update.number <= newest}
        updates.setdefault(newest, TableUpdate(newest))
        return [updates[each] for each in sorted(updates)]

    def _read_feed(self, client: Any, until: int) -> list[TableUpdate] | None:
        """The items of the feed after a number, newest first; None without a feed."""
        share, schema, name = self._names()
        target, found = f"/shares/{quote(share)}/publications", list[TableUpdate]()
        parameters = {"table": f"{schema}.{name}", "format": "json", "maxResults": str(ITEMS)}
        while True:
            page = _read_page(client, target, parameters)
            if page is None:
                return None
            updates = list(_parse_items(page.get("items")))
            found += updates
            token = (page.get("_lakeshare") or {}).get("nextPageToken")
            if token is None or any(update.number <= until for update in updates):
                return found
            parameters["pageToken"] = str(token)

    def _names(self) -> tuple[str, str, str]:
        names = self.table.split(".")
        if len(names) != 3 or not all(names):
            raise SourceError(self.table, "it is no name of a shared table", "Give share.schema.table.")
        return names[0], names[1], names[2]

    def _call(self, ask: Callable[[Any], Answer]) -> Answer:
        """Calls a function with the client of the profile, which has no deadline of its own."""

        def run() -> Answer:
            opened = protocol.DeltaSharingProfile.read_from_file(self.profile.expanduser().resolve())
            return ask(rest_client.DataSharingRestClient(opened, num_retries=0))

        try:
            return Service(f"the server of {self.table}", RESPONSE_S).call(run)
        except ImportError as error:
            reason, fix = "delta-sharing is not installed", "Install delta-sharing."
            raise SourceError(self.table, reason, fix) from error
        except (AttributeError, OSError, LookupError, ValueError, TypeError) as error:
            status, kind = _status(error), type(error).__name__
            if status in PASSING or kind in ("ConnectionError", "ConnectTimeout", "ReadTimeout"):
                what = f"the server of {self.table} does not answer ({status or kind})"
                raise Unavailable(what, LATER) from error
            reason = f"its server refuses, or {self.profile} is no profile ({status or kind})"
            raise SourceError(self.table, reason, CHECK) from error


# The client has no public call for paths that are not of the protocol.
def _read_page(client: Any, target: str, parameters: dict[str, str]) -> dict[str, Any] | None:
    try:
        with client._get_internal(target, parameters) as lines:
            page = json.loads("".join(lines))
    except OSError as error:
        if _status(error) in HAS_NO_FEED:
            return None
        raise
    except ValueError:
        return None
    is_feed = isinstance(page, dict) and str(page.get("version", "")).startswith("https://jsonfeed.org/")
    return page if is_feed else None


def _parse_items(items: Any) -> Iterator[TableUpdate]:
    for item in items if isinstance(items, list) else []:
        fields = item.get("_lakeshare") or {}
        if fields.get("event") == "publication":
            at = datetime.fromisoformat(str(fields["publishedAt"]))
            yield TableUpdate(int(fields["number"]), at, fields.get("schemaChanged"))


def _status(error: Exception) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None
