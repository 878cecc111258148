"""The lines around the files of an answer: protocol and metadata before them, the closing action behind."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakeshare_server.protocol.negotiation import ResponseFormat
from lakeshare_server.tables.delta_schema import parquet_format_schema
from lakeshare_server.tables.head import TableHead, TableProtocol


@dataclass(frozen=True)
class Access:
    """How else a recipient may read the files of a table (protocol §1.4); empty when URLs are the only way."""

    location: str | None = None
    auxiliary_locations: Sequence[str] = ()

    def as_fields(self) -> dict[str, Any]:
        """The fields of listings and metadata."""
        if self.location is None:
            return {}
        fields: dict[str, Any] = {"location": self.location, "accessModes": ["url", "dir"]}
        return (
            {**fields, "auxiliaryLocations": list(self.auxiliary_locations)}
            if self.auxiliary_locations
            else fields
        )


URLS_ONLY = Access()


@dataclass(frozen=True, kw_only=True)
class HeadLines:
    """What the head lines of one answer say, beside the table's own head."""

    response_format: ResponseFormat
    protocol: TableProtocol
    version: int | None = None
    size_bytes: int | None = None
    files: int | None = None
    shares_changes: bool = False
    access: Access = URLS_ONLY
    # Told with the protocol line too, for those who asked for the protocol's history.
    protocol_version: int | None = None

    def of(self, head: TableHead) -> bytes:
        """Both lines."""
        return self.protocol_line() + self.metadata_line(head)

    def protocol_line(self) -> bytes:
        """`protocol`."""
        if self.response_format == "parquet":
            return line({"protocol": {"minReaderVersion": 1}})
        delta = {
            "minReaderVersion": self.protocol.min_reader_version,
            "minWriterVersion": self.protocol.min_writer_version,
            "readerFeatures": self.protocol.reader_features,
            "writerFeatures": self.protocol.writer_features,
        }
        return line({"protocol": _said({"deltaProtocol": _said(delta), "version": self.protocol_version})})

    def metadata_line(self, head: TableHead) -> bytes:
        """`metaData`; `size` and `numFiles` are always there, clients fail without (protocol §0.4)."""
        around = _said({"version": self.version, "size": self.size_bytes, "numFiles": self.files})
        around.update(self.access.as_fields())
        if self.response_format == "parquet":
            return line({"metaData": {**self._parquet_metadata(head), **around}})
        return line({"metaData": {"deltaMetadata": _delta_metadata(head), **around}})

    def _parquet_metadata(self, head: TableHead) -> dict[str, Any]:
        shows_changes = self.shares_changes and head.has_change_data_feed
        return _said(
            {
                "id": head.table_id,
                "name": head.name,
                "description": head.description,
                "format": {"provider": "parquet"},
                "schemaString": parquet_format_schema(head.schema_string),
                "partitionColumns": head.partition_columns,
                "configuration": {"enableChangeDataFeed": "true"} if shows_changes else {},
            }
        )


def end_stream_action(fields: Mapping[str, object]) -> bytes:
    """The closing line, for those who asked for it."""
    return line({"endStreamAction": fields})


def line(wrapped: Mapping[str, object]) -> bytes:
    """One line of NDJSON."""
    return json.dumps(wrapped, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _delta_metadata(head: TableHead) -> dict[str, Any]:
    return _said(
        {
            "id": head.table_id,
            "name": head.name,
            "description": head.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": head.schema_string,
            "partitionColumns": head.partition_columns,
            "configuration": dict(head.configuration),
            "createdTime": head.created_time_ms,
        }
    )


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
