"""The `delta-sharing-capabilities` header: what a client can take, and what the answer uses of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from lakeshare_server.errors import Unserveable

HEADER = "delta-sharing-capabilities"


@dataclass(frozen=True)
class Capabilities:
    """A client's announcement; unknown keys are dropped."""

    response_formats: frozenset[str] = frozenset()
    reader_features: frozenset[str] = frozenset()
    wants_end_stream_action: bool = False


def parse_capabilities(header: str | None) -> Capabilities:
    """`key=v1,v2;key2=v`, in any case; never an error."""
    pairs = _pairs(header or "")
    return Capabilities(
        response_formats=pairs.get("responseformat", frozenset()),
        reader_features=pairs.get("readerfeatures", frozenset()),
        wants_end_stream_action="true" in pairs.get("includeendstreamaction", frozenset()),
    )


def require_parquet(wants: Capabilities) -> None:
    """Refuse a client that takes other formats only.

    Raises:
        Unserveable: the parquet response format is not among those it announced.
    """
    if wants.response_formats and "parquet" not in wants.response_formats:
        asked = ",".join(sorted(wants.response_formats))
        raise Unserveable(
            f"The response format {asked} is not supported by this server yet.",
            f"Ask with responseformat={asked},parquet, or leave it out (Python: use_delta_format=None).",
        )


def answered_capabilities(wants: Capabilities) -> str:
    """The header of an answer."""
    answer = "responseformat=parquet"
    return f"{answer};includeendstreamaction=true" if wants.wants_end_stream_action else answer


def _pairs(header: str) -> Mapping[str, frozenset[str]]:
    pairs: dict[str, frozenset[str]] = {}
    for part in header.lower().split(";"):
        key, _, values = part.partition("=")
        pairs[key.strip()] = frozenset(value.strip() for value in values.split(",") if value.strip())
    return pairs
