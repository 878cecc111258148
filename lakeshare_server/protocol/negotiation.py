"""Which response format an answer has: what the client announced against what the table needs."""

from typing import Literal

from lakeshare_server.errors import BadRequest, Unserveable
from lakeshare_server.protocol.capabilities import Capabilities
from lakeshare_server.tables.head import TableHead, TableProtocol
from lakeshare_server.tables.serveability import missing_features, needed_features

ResponseFormat = Literal["parquet", "delta"]
FORMATS = ("parquet", "delta")


def negotiated(wants: Capabilities, head: TableHead, table: str) -> ResponseFormat:
    """The format of an answer: parquet for what it can carry, unless the client takes delta only.

    Raises:
        BadRequest: the client takes neither of the two formats.
        Unserveable: the table cannot go out in a format the client takes; names the features it lacks.
    """
    asked = wants.response_formats or frozenset({"parquet"})
    if not asked.intersection(FORMATS):
        raise BadRequest("responseformat", ",".join(sorted(asked)), "It is parquet, delta or a list of both.")
    if "parquet" in asked and not head.hindrances:
        return "parquet"
    if "delta" in asked:
        _require_features(wants, head, table)
        return "delta"
    first = head.hindrances[0]
    # "Unsupported Delta Table Properties" is what clients' tests look for in the text.
    raise Unserveable(
        f"Unsupported Delta Table Properties: {table} {first.reason}, which the parquet response format cannot "
        "carry.",
        f"Ask with {_request(head)}. Provider: {first.fix}",
        first.code,
    )


def announced_protocol(wants: Capabilities, head: TableHead) -> TableProtocol:
    """The table's protocol without the reader features that this snapshot can do without and the client lacks."""
    protocol = head.protocol
    if protocol.reader_features is None:
        return protocol
    needed = needed_features(head)
    dropped = {
        feature
        for feature in protocol.reader_features
        if feature not in needed and feature.lower() not in wants.reader_features
    }
    if not dropped:
        return protocol
    writer = protocol.writer_features
    return TableProtocol(
        protocol.min_reader_version,
        protocol.min_writer_version,
        tuple(feature for feature in protocol.reader_features if feature not in dropped),
        None if writer is None else tuple(feature for feature in writer if feature not in dropped),
    )


def _require_features(wants: Capabilities, head: TableHead, table: str) -> None:
    missing = missing_features(head, wants.reader_features)
    if not missing:
        return
    reasons = "; ".join(one.reason for one in head.hindrances if one.feature in missing)
    raise Unserveable(
        f"Unsupported Delta Table Properties: {table} {reasons}; the client did not announce the reader features "
        f"{', '.join(missing)}.",
        f"Ask with {_request(head)}.",
        next((one.code for one in head.hindrances if one.feature in missing), None),
    )


def _request(head: TableHead) -> str:
    features = ",".join(feature.lower() for feature in needed_features(head))
    return f"responseformat=delta;readerfeatures={features}" if features else "responseformat=delta"
