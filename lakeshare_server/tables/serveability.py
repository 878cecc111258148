"""Which client can read a table, as what, and if not, why: the same for every format of tables.

Told from the head in the file index, so it costs nothing to ask. Requests decide by the same `missing_features`.
Contracts promise clients by their ids, so an id never changes.
"""

from collections.abc import Set
from dataclasses import asdict, dataclass
from typing import Any

from lakeshare_server.errors import Unserveable
from lakeshare_server.tables.head import Hindrance, TableHead
from lakeshare_server.tables.reason_codes import READ_BY_ICEBERG_CLIENTS


@dataclass(frozen=True)
class Client:
    """A client of the protocol: the response format it reads and the reader features it announces."""

    id: str
    name: str
    response_format: str
    features: frozenset[str] = frozenset()


# As notes of their sources have it: delta-sharing 1.4 for Python, delta-sharing-spark 4.0.
CLIENTS = (
    Client("python-parquet", "Python, parquet format", "parquet"),
    Client(
        "python-delta",
        "Python, delta format",
        "delta",
        frozenset({"deletionvectors", "columnmapping", "timestampntz"}),
    ),
    Client(
        "spark",
        "Spark, delta format",
        "delta",
        frozenset(
            {"deletionvectors", "columnmapping", "timestampntz", "typewidening", "typewidening-preview"}
        )
        | {"varianttype", "varianttype-preview"},
    ),
)
ICEBERG_REST_ID, ICEBERG_REST = "iceberg-rest", "Iceberg REST"
# Allowed by hand for each place a table is shared at: nothing that its own state could tell.
DIRECTORY_ID, DIRECTORY_ACCESS = "directory", "directory access"


@dataclass(frozen=True)
class Refusal:
    """One reason why a client does not get a table, and what the provider can do; `code` is one of `ReasonCode`."""

    reason: str
    fix: str | None = None
    code: str | None = None


@dataclass(frozen=True)
class Verdict:
    """How one client gets a table: `served_as` is parquet, delta, iceberg or files, None when it does not.

    `features` are the reader features that are needed; `refused_for` has every reason of a client that is not served,
    the one that its requests are told first.
    """

    id: str
    client: str
    served_as: str | None
    features: tuple[str, ...] = ()
    refused_for: tuple[Refusal, ...] = ()

    @property
    def code(self) -> str | None:
        """The code of the reason that requests are told."""
        return self.refused_for[0].code if self.refused_for else None

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON's types; `code`, `reason` and `fix` are of the reason that requests are told."""
        nothing = dict.fromkeys(("code", "reason", "fix"))
        told = asdict(self.refused_for[0]) if self.refused_for else nothing
        lists = {"features": list(self.features), "refused_for": [asdict(one) for one in self.refused_for]}
        return {"id": self.id, "client": self.client, "served_as": self.served_as, **told, **lists}

    def __str__(self) -> str:
        if self.served_as is not None:
            needs = f", needs {', '.join(self.features)}" if self.features else ""
            return f"yes, as {self.served_as}{needs}"
        first = self.refused_for[0]
        code = f" [{first.code}]" if first.code else ""
        return f"no, {first.reason.rstrip('.')}{code}" + (f". {first.fix}" if first.fix else "")


def needed_features(head: TableHead) -> list[str]:
    """The reader features that a client of the delta format cannot do without."""
    return list(dict.fromkeys(one.feature for one in head.hindrances if one.feature is not None))


def missing_features(head: TableHead, announced: Set[str]) -> list[str]:
    """Those of them that a client did not announce; it announces them in lower case."""
    return [feature for feature in needed_features(head) if feature.lower() not in announced]


def clients_of(table_format: str) -> tuple[str, ...]:
    """The ids of the clients that tables of a format can be promised to."""
    clients = tuple(client.id for client in CLIENTS)
    return (*clients, ICEBERG_REST_ID) if table_format == "iceberg" else clients


def serveability(table_format: str, head: TableHead) -> list[Verdict]:
    """The verdicts for all clients that come through the server's doors."""
    return [*(_verdict(client, head) for client in CLIENTS), _iceberg_rest(table_format, head)]


def nobody_is_served(why: Unserveable) -> list[Verdict]:
    """The same verdicts for a state that cannot be published at all, from the refusal to read it."""
    clients = [*((client.id, client.name) for client in CLIENTS), (ICEBERG_REST_ID, ICEBERG_REST)]
    refusal = Refusal(why.reason, why.fix, why.code)
    return [Verdict(id_, name, None, refused_for=(refusal,)) for id_, name in clients]


def is_read_by_iceberg_clients(why: Unserveable) -> bool:
    """Whether a refusal keeps a table from the Delta Sharing API only."""
    return why.code in READ_BY_ICEBERG_CLIENTS


def only_iceberg_is_served(why: Unserveable) -> list[Verdict]:
    """The same verdicts for a state that only Iceberg clients can read, from the Delta Sharing API's refusal."""
    refusal = Refusal(why.reason, why.fix, why.code)
    refused = [Verdict(client.id, client.name, None, refused_for=(refusal,)) for client in CLIENTS]
    return [*refused, Verdict(ICEBERG_REST_ID, ICEBERG_REST, "iceberg")]


def directory_verdict(path: str, refusal: str | None) -> Verdict:
    """The verdict on directory access to a table as it is shared, from what `directory_refusal` says."""
    client = f"{DIRECTORY_ACCESS} to {path}"
    if refusal is None:
        return Verdict(DIRECTORY_ID, client, "files")
    return Verdict(DIRECTORY_ID, client, None, refused_for=(Refusal(refusal),))


def _verdict(client: Client, head: TableHead) -> Verdict:
    found = _in_the_way(client, head)
    if found:
        refusals = tuple(Refusal(f"it {one.reason}", one.fix, one.code) for one in found)
        return Verdict(client.id, client.name, None, refused_for=refusals)
    needed = () if client.response_format == "parquet" else tuple(needed_features(head))
    return Verdict(client.id, client.name, client.response_format, needed)


def _in_the_way(client: Client, head: TableHead) -> tuple[Hindrance, ...]:
    """What keeps a client from a table, the first first."""
    if client.response_format == "parquet":
        return head.hindrances
    missing = missing_features(head, client.features)
    return tuple(one for one in head.hindrances if one.feature in missing)


def _iceberg_rest(table_format: str, head: TableHead) -> Verdict:
    if table_format == "iceberg" or head.has_iceberg_metadata:
        return Verdict(ICEBERG_REST_ID, ICEBERG_REST, "iceberg")
    refusal = Refusal("it is no Iceberg table")
    return Verdict(ICEBERG_REST_ID, ICEBERG_REST, None, refused_for=(refusal,))
