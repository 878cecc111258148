"""Column types: from the standard's logical and physical types to Spark's own short spelling."""

import re

ALIASES = {"integer": "int", "long": "bigint", "real": "float", "byte": "tinyint", "short": "smallint"}

DEFAULTS = {
    "string": "string",
    "date": "date",
    "timestamp": "timestamp",
    "number": "double",
    "integer": "bigint",
    "boolean": "boolean",
}

PHYSICAL_OF = {
    "string": {"string"},
    "date": {"date"},
    "timestamp": {"timestamp"},
    "number": {"float", "double", "decimal"},
    "integer": {"tinyint", "smallint", "int", "bigint"},
    "boolean": {"boolean"},
}

# Iceberg has no integers below 32 bits: Spark would make ints of them and the table would not match its contract.
TYPES_OF_FORMAT = {
    "iceberg": {"boolean", "int", "bigint", "float", "double", "decimal", "string", "date", "timestamp"},
    "delta": {
        *("boolean", "tinyint", "smallint", "int", "bigint"),
        *("float", "double", "decimal", "string", "date", "timestamp"),
    },
}

_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\((\d+)(?:,(\d+))?\)")
MAX_PRECISION = 38


def spelled(physical: str) -> str:
    """Spark's short spelling of a type: `INTEGER` → `int`, `Decimal(10, 2)` → `decimal(10,2)`."""
    text = re.sub(r"\s+", "", physical.lower())
    decimal = _DECIMAL.fullmatch(text)
    if decimal:
        return f"decimal({int(decimal[1])},{int(decimal[2] or 0)})"
    return ALIASES.get(text, text)


def base_of(spark_type: str) -> str:
    """The type without its parameters."""
    return spark_type.split("(", 1)[0]


def can_widen(before: str, after: str) -> bool:
    """Whether a column of one type can become one of the other without touching its values.

    The promotions of Iceberg's specification, "Schema Evolution", that both types of a contract can be.
    """
    if (before, after) in (("int", "bigint"), ("float", "double")):
        return True
    narrow, wide = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if narrow is None or wide is None:
        return False
    return int(narrow[2] or 0) == int(wide[2] or 0) and int(narrow[1]) < int(wide[1])


def wrong_type(spark_type: str, logical: str | None, table_format: str) -> str | None:
    """Why a column cannot have this type; None when it can."""
    base = base_of(spark_type)
    known = TYPES_OF_FORMAT[table_format]
    if base not in known:
        return f"type {spark_type!r} cannot be used in a table of format {table_format}"
    if base == "decimal":
        decimal = _DECIMAL.fullmatch(spark_type)
        if (
            decimal is None
            or not 1 <= int(decimal[1]) <= MAX_PRECISION
            or int(decimal[2] or 0) > int(decimal[1])
        ):
            return f"type {spark_type!r} needs a precision of 1 to {MAX_PRECISION} and a scale up to it"
    if logical is not None and base not in PHYSICAL_OF[logical]:
        return f"type {spark_type!r} contradicts logicalType {logical!r}"
    return None
