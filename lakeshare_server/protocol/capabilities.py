"""The `delta-sharing-capabilities` header: what a client can take, and what the answer uses of it."""

from collections.abc import Mapping
from dataclasses import dataclass

HEADER = "delta-sharing-capabilities"


@dataclass(frozen=True)
class Capabilities:
    """A client's announcement; unknown keys are dropped. Everything is in lower case."""

    response_formats: frozenset[str] = frozenset()
    reader_features: frozenset[str] = frozenset()
    wants_end_stream_action: bool = False
    wants_async: bool = False


def parse_capabilities(header: str | None) -> Capabilities:
    """`key=v1,v2;key2=v`, in any case; never an error."""
    pairs = _pairs(header or "")
    return Capabilities(
        response_formats=pairs.get("responseformat", frozenset()),
        reader_features=pairs.get("readerfeatures", frozenset()),
        wants_end_stream_action="true" in pairs.get("includeendstreamaction", frozenset()),
        wants_async="true" in pairs.get("asyncquery", frozenset()),
    )


def answered(response_format: str, wants: Capabilities, *, is_pending: bool = False) -> str:
    """The header of an answer in a format; a pending one says that it is asynchronous."""
    parts = [f"responseformat={response_format}"]
    if wants.wants_end_stream_action:
        parts.append("includeendstreamaction=true")
    if is_pending:
        parts.append("asyncquery=true")
    return ";".join(parts)


def _pairs(header: str) -> Mapping[str, frozenset[str]]:
    pairs: dict[str, frozenset[str]] = {}
    for part in header.lower().split(";"):
        key, _, values = part.partition("=")
        pairs[key.strip()] = frozenset(value.strip() for value in values.split(",") if value.strip())
    return pairs
