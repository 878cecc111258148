"""The lines of a file in both response formats, rendered at publication without URLs and per-request fields.

The columns of a line are the ids, `common` (the same in both formats), `delta_rest` (delta format only), and `dv_rest`,
which follows the URL of a deletion vector that has a file of its own.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakeshare_server.storage.location_columns import byte_strings, hex_texts, is_plain

sha256 = partial(hashlib.sha256, usedforsecurity=False)
try:
    # CPython's own takes half of OpenSSL's time for a short text.
    from _md5 import md5  # type: ignore[import-not-found]
except ImportError:
    md5 = partial(hashlib.md5, usedforsecurity=False)

DAYS = (-719_162, 2_932_896)
MILLISECOND_CHARACTERS = len("2013-01-01T00:00:00.000")
MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)

Part: TypeAlias = str | pa.Array


@dataclass(frozen=True)
class JsonText:
    """Writes values as JSON; `depth` 2 escapes for JSON inside of a JSON string."""

    quote: str
    depth: int

    def string(self, values: pa.Array) -> list[Part]:
        if not is_plain(values, without=b'"'):
            different = pc.drop_null(pc.unique(values))
            escaped = pa.array([self.escaped(value) for value in different.to_pylist()], pa.string())
            values = pc.take(escaped, pc.index_in(values, different))
        return [self.quote, values, self.quote]

    def value(self, values: pa.Array, *, is_upper: bool = False) -> list[Part] | None:
        """Values as statistics write them; None for a type without statistics.

        Times have milliseconds (Delta PROTOCOL, "Per-file Statistics"): lower bounds are rounded down, upper ones up.
        """
        kind = values.type
        if pa.types.is_string(kind):
            return self.string(values)
        if pa.types.is_date(kind):
            return [self.quote, value_text(values), self.quote]
        if pa.types.is_timestamp(kind):
            text = pc.replace_substring(value_text(_milliseconds(values, is_upper=is_upper)), " ", "T")
            zone = "" if kind.tz is None else "Z"
            return [self.quote, pc.utf8_slice_codeunits(text, 0, MILLISECOND_CHARACTERS), zone + self.quote]
        if pa.types.is_floating(kind):
            finite = pc.is_finite(values)
            kept = values if pc.all(finite, min_count=0).as_py() else pc.if_else(finite, values, None)
            return [pc.cast(kept, pa.string())]
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            return [pc.cast(values, pa.string())]
        return None

    def object(self, members: Sequence[tuple[str, Sequence[Part]]]) -> list[Part]:
        """An object per row, without the members that are null in the row."""
        parts: list[Part] = []
        for name, value in members:
            named = [f",{self.quote}{self.escaped(name)}{self.quote}:", *value]
            has_nulls = any(not isinstance(part, str) and part.null_count for part in value)
            parts += [pc.fill_null(join_parts(named), "")] if has_nulls else named
        if not parts:
            return ["{}"]
        if isinstance(parts[0], str):
            return ["{" + parts[0].removeprefix(","), *parts[1:], "}"]
        return ["{", pc.ascii_ltrim(join_parts(parts, null=""), ","), "}"]

    def escaped(self, value: str) -> str:
        for _ in range(self.depth):
            value = json.dumps(value, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
        return value


PLAIN = JsonText('"', 1)
NESTED = JsonText('\\"', 2)


def join_parts(parts: Sequence[Part], null: str | None = None) -> pa.Array:
    """Joins the parts row by row; a null part makes the row null, or is replaced by `null`."""
    if null is None:
        return pc.binary_join_element_wise(*parts, "")
    return pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement=null)


def value_text(values: pa.Array) -> pa.Array:
    """Values as the protocol writes partition values, without quotes; null for values without a text."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        common = _common_years(values, pa.int64(), MICROSECONDS)
        return pc.cast(pc.cast(common, pa.timestamp("us")), pa.string())
    if pa.types.is_date(kind):
        return pc.cast(_common_years(values, pa.int32(), DAYS), pa.string())
    if pa.types.is_binary(kind):
        return pa.nulls(len(values), pa.string())
    return pc.cast(values, pa.string())


def partition_text(values: pa.Array) -> pa.Array:
    """Partition values as text, null for a value without one.

    Times with a zone have the form that names it (Delta PROTOCOL, "Partition Value Serialization"): clients would read
    the other form in their own zone.
    """
    text = value_text(values)
    if not pa.types.is_timestamp(values.type) or values.type.tz is None:
        return text
    return pc.binary_join_element_wise(pc.replace_substring(text, " ", "T"), "Z", "")


def _milliseconds(values: pa.Array, *, is_upper: bool) -> pa.Array:
    numbers = pc.cast(values, pa.int64())
    # Arrow's division rounds towards zero: times before 1970 need a correction.
    part = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1000), 1000))
    down = pc.subtract(numbers, pc.if_else(pc.less(part, 0), pc.add(part, 1000), part))
    rounded = pc.if_else(pc.greater(numbers, down), pc.add(down, 1000), down) if is_upper else down
    return pc.cast(rounded, values.type)


def _common_years(values: pa.Array, number_type: pa.DataType, limits: tuple[int, int]) -> pa.Array:
    """The values in years of four digits: other years have no text that every reader accepts."""
    numbers = pc.cast(values, number_type)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is None or (limits[0] <= ends["min"] and ends["max"] <= limits[1]):
        return values
    is_common = pc.and_(pc.greater_equal(numbers, limits[0]), pc.less_equal(numbers, limits[1]))
    return pc.if_else(is_common, values, None)


def column_of(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


# An array of texts holds 2 GiB: those of a piece may have 16 KiB each.
PIECE_ROWS = 1 << 17


def pieces_of(table: pa.Table) -> list[pa.Table]:
    """The table in pieces of one chunk each, at least one; chunks that are large enough are not copied."""
    pieces: list[pa.Table] = []
    start = end = 0
    for size in (*(batch.num_rows for batch in table.to_batches(PIECE_ROWS)), PIECE_ROWS + 1):
        if end - start + size > PIECE_ROWS and (end > start or not table.num_rows):
            piece = table.slice(start, end - start)
            pieces.append(pa.table({name: column_of(piece, name) for name in piece.column_names}))
            start = end
        end += size
    return pieces


def take_rows(pieces: Sequence[pa.Table], rows: pa.Array) -> pa.Table:
    """Takes rows, counted over all pieces: Arrow's own function would join all texts of a column in one array."""
    if len(pieces) == 1:
        return pieces[0].take(rows)
    parts, places, start = [], [], 0
    for piece in pieces:
        is_here = pc.and_(pc.greater_equal(rows, start), pc.less(rows, start + piece.num_rows))
        places.append(pc.indices_nonzero(is_here))
        parts.append(piece.take(pc.subtract(rows.filter(is_here), start)))
        start += piece.num_rows
    taken = pa.concat_tables(parts).combine_chunks()
    return taken.take(pc.sort_indices(pa.concat_arrays(places)))


def struct_of(columns: Mapping[str, pa.Array], count: int) -> pa.StructArray:
    """Returns a struct of `count` rows, with or without columns."""
    if not columns:
        return pa.nulls(count, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def total(values: pa.Array) -> int:
    """Returns the sum of numbers or booleans, 0 without values."""
    return int(pc.sum(values, min_count=0).as_py())


# What files of few tables have: lines are rendered without the column, too.
OPTIONAL = (
    *("base_row_id", "default_row_commit_version", "tags", "clustering_provider"),
    *("dv_inline", "dv_path", "dv_id", "dv_storage"),
)


def drop_empty(files: pa.Table, kept: Sequence[str]) -> pa.Table:
    """The files without optional columns that are null in all of them, except those in `kept`."""
    optional = [name for name in OPTIONAL if name in files.column_names and name not in kept]
    return files.drop_columns([name for name in optional if files.column(name).null_count == files.num_rows])


LINE_COLUMNS = ("parquet_id", "delta_id", "common", "delta_rest", "dv_path", "dv_file_id", "dv_rest")


def render_lines(
    files: pa.Table, partition_columns: tuple[str, ...], columns: Sequence[str] = LINE_COLUMNS
) -> list[pa.Array]:
    """Returns these columns of `LINE_COLUMNS` for one chunk of a snapshot's files.

    Files of changes have the begin of `delta_rest` in the column rest.
    """
    names, vectors = column_of(files, "name"), _vectors(files)
    renderers: tuple[Callable[[], pa.Array], ...] = (
        lambda: file_ids(names, md5),
        lambda: file_ids(names, sha256),
        lambda: _common(files, partition_columns),
        lambda: _delta_rest(files),
        *(partial(vectors.__getitem__, number) for number in range(3)),
    )
    return [render() for name, render in zip(LINE_COLUMNS, renderers, strict=True) if name in columns]


def file_ids(names: pa.Array, digest: Callable[[bytes], "hashlib._Hash"]) -> pa.Array:
    """Returns the ids of the reference server: MD5 (parquet) or SHA-256 (delta) of the path as spelt in the log."""
    return hex_texts([digest(name).digest() for name in byte_strings(names)])


def _common(files: pa.Table, partition_columns: tuple[str, ...]) -> pa.Array:
    if "partition_values" in files.column_names:
        texts = column_of(files, "partition_values")
        values = {field.name: pc.struct_field(texts, [number]) for number, field in enumerate(texts.type)}
    else:
        partition = column_of(files, "partition")
        values = {name: partition_text(pc.struct_field(partition, [name])) for name in partition_columns}
    parts = [
        '"partitionValues":',
        *PLAIN.object([(name, _nullable_string(texts)) for name, texts in values.items()]),
        ',"size":',
        pc.cast(column_of(files, "size"), pa.string()),
        *(_logged_stats(column_of(files, "stats")) if "stats" in files.column_names else _stats(files)),
    ]
    return join_parts(parts, null="")


def _nullable_string(texts: pa.Array) -> list[Part]:
    value = PLAIN.string(texts)
    return [pc.fill_null(join_parts(value), "null")] if texts.null_count else value


def _logged_stats(texts: pa.Array) -> list[Part]:
    """The log's statistics as a JSON string; nothing for a file without statistics."""
    if texts.null_count == len(texts):
        return []
    if is_plain(texts):
        quoted = pc.replace_substring(texts, '"', '\\"')
    else:
        escaped = (None if text is None else PLAIN.escaped(text) for text in texts.to_pylist())
        quoted = pa.array(escaped, pa.string())
    parts: list[Part] = [',"stats":"', quoted, '"']
    return [pc.fill_null(join_parts(parts), "")] if texts.null_count else parts


def _stats(files: pa.Table) -> list[Part]:
    """`,"stats":"…"`: a JSON object inside a JSON string; null for a file with an unknown row count."""
    rows = pc.cast(column_of(files, "rows"), pa.string())
    maxima = "client_max" if "client_max" in files.column_names else "max"
    members: list[tuple[str, list[Part]]] = [
        ("numRecords", [rows]),
        ("minValues", struct_json(column_of(files, "min"), NESTED)),
        ("maxValues", struct_json(column_of(files, maxima), NESTED, is_upper=True)),
        ("nullCount", struct_json(column_of(files, "null_count"), NESTED)),
        # Iceberg's writers cut long texts, and clients may compute MIN and MAX from bounds that are not marked as wide
        # (Delta PROTOCOL, "Per-file Statistics").
        ("tightBounds", ["false"]),
    ]
    parts = [',"stats":"', *NESTED.object(members), '"']
    if not rows.null_count:
        return parts
    # Readers cannot use bounds without a row count, and Delta's own readers require the count.
    return [pc.if_else(pc.is_valid(rows), join_parts(parts, null=""), None)]


def struct_json(
    values: pa.StructArray, text: JsonText, *, is_upper: bool = False, with_booleans: bool = False
) -> list[Part]:
    """A JSON object per row, nested ones included, without columns of types that statistics do not have."""
    members: list[tuple[str, list[Part]]] = []
    for position, member in enumerate(values.type):
        inner = pc.struct_field(values, [position])
        value: list[Part] | None
        if pa.types.is_struct(member.type):
            value = struct_json(inner, text, is_upper=is_upper, with_booleans=with_booleans)
        elif with_booleans and pa.types.is_boolean(member.type):
            value = [pc.cast(inner, pa.string())]
        else:
            value = text.value(inner, is_upper=is_upper)
        if value is not None:
            members.append((member.name, value))
    return text.object(members)


def _delta_rest(files: pa.Table) -> pa.Array:
    def member(name: str, parts: Callable[[pa.Array], list[Part]]) -> list[Part]:
        """A member for the files that have a value."""
        values = column_of(files, name) if name in files.column_names else None
        if values is None or values.null_count == len(values):
            return []
        return [pc.fill_null(join_parts(parts(values)), "")]

    def number(key: str) -> Callable[[pa.Array], list[Part]]:
        return lambda values: [f',"{key}":', pc.cast(values, pa.string())]

    modified = pc.cast(pc.fill_null(column_of(files, "modification_time"), 0), pa.string())
    is_change = "rest" in files.column_names
    parts: list[Part] = [
        *(
            [column_of(files, "rest")]
            if is_change
            else [',"modificationTime":', modified, ',"dataChange":true']
        ),
        *member("base_row_id", number("baseRowId")),
        *member("default_row_commit_version", number("defaultRowCommitVersion")),
        *member("tags", lambda values: [',"tags":', values]),
        *member("clustering_provider", lambda values: [',"clusteringProvider":', *PLAIN.string(values)]),
    ]
    inline = ',"deletionVector":{"storageType":"i","pathOrInlineDv":'
    parts += member("dv_inline", lambda values: [inline, *PLAIN.string(values), *_vector_size(files), "}"])
    return join_parts(parts, null="")


def _vectors(files: pa.Table) -> list[pa.Array]:
    """The locations of deletion vectors, their ids, and what follows their URL in the line."""
    count = files.num_rows
    if "dv_path" not in files.column_names or column_of(files, "dv_path").null_count == count:
        return [pa.nulls(count, pa.string())] * 3
    paths = column_of(files, "dv_path")
    in_files = pc.is_valid(paths)
    names = column_of(files, "dv_id").to_pylist()
    ids = pa.array([name and hashlib.sha256(name.encode()).hexdigest() for name in names], pa.string())
    rest = join_parts(['"', *_vector_size(files), "}"])
    return [paths, pc.if_else(in_files, ids, None), pc.if_else(in_files, rest, None)]


def _vector_size(files: pa.Table) -> list[Part]:
    offset = pc.cast(column_of(files, "dv_offset"), pa.string())
    return [
        pc.fill_null(join_parts([',"offset":', offset]), ""),
        ',"sizeInBytes":',
        pc.cast(column_of(files, "dv_size"), pa.string()),
        ',"cardinality":',
        pc.cast(column_of(files, "dv_cardinality"), pa.string()),
    ]


ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
# Python's base 85, which has the same digits in another order; NUL is a digit of neither.
BASE_85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
TO_Z85 = bytes.maketrans(BASE_85, ALPHABET.encode())
_DIGITS = dict(zip(ALPHABET.encode(), BASE_85, strict=True))
FROM_Z85 = bytes(_DIGITS.get(byte, 0) for byte in range(256))


def encode_z85(content: bytes) -> str:
    """Encodes bytes in Z85, padded with zeros to a multiple of four: the reader needs the length from another field."""
    return base64.b85encode(content + bytes(-len(content) % 4)).translate(TO_Z85).decode()


def decode_z85(text: str) -> bytes:
    """Decodes a Z85 text; raises ValueError if it is none."""
    if len(text) % 5:
        raise ValueError("the length of a Z85 text is a multiple of five")
    return base64.b85decode(text.encode().translate(FROM_Z85))
