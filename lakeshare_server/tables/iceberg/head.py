"""What recipients are told of an Iceberg table: the head that a Delta table with these columns and files would have.

Delta's PROTOCOL.md, "Table Features"; what the parquet response format cannot carry is listed as its hindrances.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lakeshare_server.tables.delta_schema import primitive_types
from lakeshare_server.tables.head import Hindrance, TableHead, TableProtocol
from lakeshare_server.tables.iceberg.names import InFiles
from lakeshare_server.tables.iceberg.schema import delta_schema_string
from lakeshare_server.tables.reason_codes import ReasonCode

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

# What writers would set to have the feature; readers of the protocol look at some of them.
PROPERTIES = {
    "columnMapping": ("delta.columnMapping.mode", "id"),
    "typeWidening": ("delta.enableTypeWidening", "true"),
}
# Types that only readers with a feature know.
NEEDED_BY_TYPE = (
    (
        *("timestamp_ntz", "timestampNtz"),
        ReasonCode.TIMESTAMPS_WITHOUT_ZONE,
        "has timestamps without a time zone",
    ),
    ("variant", "variantType", ReasonCode.VARIANTS, "has variants"),
)


def iceberg_head(
    table: "TableMetadata",
    schema: "Schema",
    root: str,
    partition_columns: tuple[str, ...],
    in_files: InFiles,
) -> TableHead:
    """The head of one state of a table, but for what its deleted rows add to it: see `vectors.with_vectors`.

    Raises:
        Unserveable: a column has a type or a name that recipients cannot be told of.
    """
    schema_string = delta_schema_string(schema, root, in_files)
    found = tuple(_hindrances(schema_string, in_files))
    features = tuple(one.feature for one in found if one.feature is not None)
    configuration = dict(PROPERTIES[feature] for feature in features if feature in PROPERTIES)
    if in_files.renamed:
        configuration["delta.columnMapping.maxColumnId"] = str(table.last_column_id)
    return TableHead(
        table_id=str(table.table_uuid),
        schema_string=schema_string,
        partition_columns=partition_columns,
        protocol=TableProtocol(3, 7, features, features) if features else TableProtocol(),
        configuration=configuration,
        hindrances=found,
    )


def _hindrances(schema_string: str, in_files: InFiles) -> Iterator[Hindrance]:
    if in_files.renamed:
        reason = f"is read by field ids: a file {in_files.renamed}"
        is_odd = in_files.is_spelt_otherwise
        code = ReasonCode.NAMES_SPELT_OTHERWISE if is_odd else ReasonCode.RENAMED_COLUMNS
        yield _hindrance("columnMapping", code, reason)
    if in_files.widened:
        yield _hindrance(
            "typeWidening", ReasonCode.WIDENED_TYPES, "has columns of an older type in live files"
        )
    first = {kind: column for column, kind in reversed(list(primitive_types(schema_string)))}
    for kind, feature, code, reason in NEEDED_BY_TYPE:
        if kind in first:
            yield _hindrance(feature, code, f"{reason} (column {first[kind]})")
    if in_files.shredded:
        yield _hindrance(
            "variantShredding",
            ReasonCode.SHREDDED_VARIANTS,
            f"has files in which parts of variants are columns of their own (column {in_files.shredded})",
        )


def _hindrance(feature: str, code: ReasonCode, reason: str) -> Hindrance:
    return Hindrance(feature, reason, code.fix, code)
