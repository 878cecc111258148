"""Which client can read a table, as what, and if not, why: the same for every format of tables.

Told from the head in the file index, so it costs nothing to ask. Requests decide by the same `missing_features`.
"""

from collections.abc import Set
from dataclasses import asdict, dataclass
from typing import Any

from lakeshare_server.tables.head import Hindrance, TableHead


@dataclass(frozen=True)
class Client:
    """A client of the protocol: the response format it reads and the reader features it announces."""

    name: str
    response_format: str
    features: frozenset[str] = frozenset()


# As notes of their sources have it: delta-sharing 1.4 for Python, delta-sharing-spark 4.0.
CLIENTS = (
    Client("Python, parquet format", "parquet"),
    Client("Python, delta format", "delta", frozenset({"deletionvectors", "columnmapping", "timestampntz"})),
    Client(
        "Spark, delta format",
        "delta",
        frozenset(
            {"deletionvectors", "columnmapping", "timestampntz", "typewidening", "typewidening-preview"}
        )
        | {"varianttype", "varianttype-preview"},
    ),
)
ICEBERG_REST = "Iceberg REST"
DIRECTORY_ACCESS = "directory access"


@dataclass(frozen=True)
class Verdict:
    """How one client gets a table: `served_as` is parquet, delta, iceberg or files, None when it does not.

    `features` are the reader features that are needed; `code`, `reason` and `fix` say why not, where it is not served.
    """

    client: str
    served_as: str | None
    features: tuple[str, ...] = ()
    code: str | None = None
    reason: str | None = None
    fix: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON's types."""
        return {**asdict(self), "features": list(self.features)}

    def __str__(self) -> str:
        if self.served_as is not None:
            needs = f", needs {', '.join(self.features)}" if self.features else ""
            return f"yes, as {self.served_as}{needs}"
        code = f" [{self.code}]" if self.code else ""
        return f"no, {self.reason}{code}" + (f". {self.fix}" if self.fix else "")


def needed_features(head: TableHead) -> list[str]:
    """The reader features that a client of the delta format cannot do without."""
    return [one.feature for one in head.hindrances if one.feature is not None]


def missing_features(head: TableHead, announced: Set[str]) -> list[str]:
    """Those of them that a client did not announce; it announces them in lower case."""
    return [feature for feature in needed_features(head) if feature.lower() not in announced]


def serveability(table_format: str, head: TableHead) -> list[Verdict]:
    """The verdicts for all clients that come through the server's doors."""
    return [*(_verdict(client, head) for client in CLIENTS), _iceberg_rest(table_format, head)]


def directory_verdict(path: str, refusal: str | None) -> Verdict:
    """The verdict on directory access to a table as it is shared, from what `directory_refusal` says."""
    client = f"{DIRECTORY_ACCESS} to {path}"
    return Verdict(client, "files") if refusal is None else Verdict(client, None, reason=refusal)


def _verdict(client: Client, head: TableHead) -> Verdict:
    if client.response_format == "parquet":
        return _refused(client, head.hindrances[0]) if head.hindrances else Verdict(client.name, "parquet")
    missing = missing_features(head, client.features)
    if not missing:
        return Verdict(client.name, "delta", tuple(needed_features(head)))
    return _refused(client, next(one for one in head.hindrances if one.feature == missing[0]))


def _refused(client: Client, why: Hindrance) -> Verdict:
    return Verdict(client.name, None, code=why.code, reason=f"it {why.reason}", fix=why.fix)


def _iceberg_rest(table_format: str, head: TableHead) -> Verdict:
    if table_format == "iceberg" or head.has_iceberg_metadata:
        return Verdict(ICEBERG_REST, "iceberg")
    return Verdict(ICEBERG_REST, None, reason="it is no Iceberg table")
