"""The line of each file of a change, put together from what the index of changes rendered, the URLs and the times."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from lakeshare_server.protocol.file_lines import AFTER_URL, END, signed, text_of, vector_ends
from lakeshare_server.protocol.negotiation import ResponseFormat
from lakeshare_server.protocol.signing import Sign
from lakeshare_server.tables.byte_strings import texts

# By `kind` of the index: what the formats call an add, a remove, and a file of row-level changes.
PARQUET_WORDS = ("add", "remove", "cdf")
DELTA_WORDS = ("add", "remove", "cdc")


@dataclass(frozen=True, kw_only=True)
class ChangeLines:
    """The words of one answer; `ids` is the scheme of the files' ids (protocol §2.6)."""

    response_format: ResponseFormat
    ids: ResponseFormat
    expires_at_ms: int

    def of(self, changes: pa.RecordBatch, times_ms: Mapping[int, int], sign: Sign) -> memoryview:
        """The lines of a batch of a segment; `times_ms` are those of its versions."""
        is_delta = self.response_format == "delta"
        kinds, versions = changes.column("kind").to_pylist(), changes.column("version").to_pylist()
        before = _before_urls(self.response_format)
        parts: list[str | pa.Array] = [
            texts(list(self._heads(kinds, versions, times_ms))),
            changes.column(f"{self.ids}_id"),
            texts([before[kind] for kind in kinds]),
            signed(changes.column("path"), sign),
            AFTER_URL,
            changes.column("common"),
        ]
        parts += [changes.column("delta_rest"), vector_ends(changes, sign)] if is_delta else [END["parquet"]]
        return text_of(parts)

    def _heads(self, kinds: list[int], versions: list[int], times_ms: Mapping[int, int]) -> Iterator[bytes]:
        """How each line begins: the same for all changes of a kind at a version."""
        known: dict[tuple[int, int], bytes] = {}
        for kind, version in zip(kinds, versions, strict=True):
            head = known.get((kind, version))
            if head is None:
                wrapper = "file" if self.response_format == "delta" else PARQUET_WORDS[kind]
                said = f'"version":{version},"timestamp":{times_ms[version]}'
                head = f'{{"{wrapper}":{{"expirationTimestamp":{self.expires_at_ms},{said},"id":"'.encode()
                known[kind, version] = head
            yield head


def _before_urls(response_format: ResponseFormat) -> list[bytes]:
    if response_format == "parquet":
        return [b'","url":"'] * len(PARQUET_WORDS)
    return [f'","deltaSingleAction":{{"{word}":{{"path":"'.encode() for word in DELTA_WORDS]
