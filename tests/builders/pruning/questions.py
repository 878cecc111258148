"""Random predicates on a table's columns, as clients write them: JSON of both versions, and SQL."""

import math
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any

from tests.builders.pruning.casts import BITS, DAY_US, date_text, time_text
from tests.builders.pruning.tables import FIRST_DAY, LONG_TEXTS, POOLS, TEXTS, Table, number_text
from tests.builders.pruning.truth import (
    Begins,
    Cast,
    Column,
    Comparison,
    Constant,
    Every,
    Holds,
    Missing,
    Negation,
    OneOf,
    Opaque,
    Question,
    Same,
    Some,
    Term,
    is_meant,
)

HOUR_US = 3_600_000_000
OPERATORS = ("=", "=", "<", "<=", ">", ">=")
JSON_NAMES = {
    "=": "equal",
    "<": "lessThan",
    "<=": "lessThanOrEqual",
    ">": "greaterThan",
    ">=": "greaterThanOrEqual",
}
MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# The types of JSON predicates, by those of tables; V1 knows the first five.
KINDS = {"boolean": "bool", "integer": "int", "long": "long", "string": "string", "date": "date"}
KINDS |= {"float": "float", "double": "double", "timestamp": "timestamp"}
SQL_TYPES = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT", "float": "FLOAT"}
SQL_TYPES |= {"double": "DOUBLE", "string": "STRING", "boolean": "BOOLEAN", "date": "DATE"}
SQL_TYPES |= {"timestamp": "TIMESTAMP", "timestamp_ntz": "TIMESTAMP_NTZ"}
# Constants that clients may write for columns of a type, beside those of the type itself.
OTHERS = {
    "byte": ("integer", "decimal(10,2)", "double", "string", "long"),
    "short": ("integer", "decimal(10,2)", "float", "string"),
    "integer": ("long", "decimal(10,2)", "double", "float", "string", "boolean"),
    "long": ("integer", "decimal(10,2)", "double", "float", "string"),
    "float": ("integer", "double", "decimal(10,2)", "string", "long"),
    "double": ("integer", "float", "decimal(10,2)", "string", "long"),
    "decimal(10,2)": ("integer", "double", "string", "decimal(38,10)", "float"),
    "decimal(38,10)": ("integer", "double", "string", "decimal(10,2)", "long"),
    "string": ("integer", "date", "boolean", "double"),
    "boolean": ("integer", "string"),
    "date": ("string", "timestamp", "timestamp_ntz"),
    "timestamp": ("string", "date", "timestamp_ntz"),
    "timestamp_ntz": ("string", "date", "timestamp"),
    "binary": ("string",),
}
# Texts that are values of other types, in one of the ways they are written.
TYPED_TEXTS = ["5", "05", "0", "-1", "0.1", "5.00", "5.0", "1e0", "NaN", "2020-01-01", "2020-1-1"]
TYPED_TEXTS += [
    "2020-01-01 12:00:00",
    "2020-01-01 00:00:00.123456",
    "2020-01-01T00:00:00Z",
    "2020-01-02 00:00:00+02:00",
    "true",
    "",
    "x",
]


def a_question(random: Random, table: Table, *, is_json: bool) -> Question:
    """A predicate of up to four levels, most have one: what is wrong with a part is seldom seen beside others."""
    leaf, depth = _json_leaf if is_json else _sql_leaf, random.choice((0, 0, 0, 1, 1, 2, 3))
    made = (_question(random, table, depth, leaf) for _ in count())
    return next(question for question in made if is_meant(question))


def _question(random: Random, table: Table, depth: int, leaf: Any) -> Question:
    if depth == 0 or random.random() < 0.2:
        kind = random.choice(sorted({column.type for column in table.columns}))
        column = random.choice([column for column in table.columns if column.type == kind])
        return leaf(random, column, table)
    if random.random() < 0.25:
        return Negation(_question(random, table, depth - 1, leaf))
    made = random.choice((Every, Some))
    return made(tuple(_question(random, table, depth - 1, leaf) for _ in range(random.randint(2, 3))))


def _constant(random: Random, kind: str, column: Column, table: Table) -> Constant:
    if kind == "string" and (column.type != "string" or random.random() < 0.2):
        return Constant(random.choice(TYPED_TEXTS), kind)
    there = [row[column.path] for file in table.files for row in file.rows] if kind == column.type else []
    there = [value for value in there if value is not None]
    value = random.choice(there) if there and random.random() < 0.6 else random.choice(POOLS[kind])
    if random.random() < 0.2 and kind in BITS:
        value = max(min(value + random.choice((-1, 1)), (1 << (BITS[kind] - 1)) - 1), -1 << (BITS[kind] - 1))
    if random.random() < 0.5 and kind.startswith("timestamp"):
        value += random.choice((-1, 1, 500, -999, random.randint(0, 26) * HOUR_US))
        # Neither clients nor Python have times before.
        value = max(value, FIRST_DAY * DAY_US)
    return Constant(value, kind)


def _sql_constant_of(random: Random, kind: str, column: Column, table: Table) -> Term:
    """A constant; one of times may be a text in the client's own zone."""
    constant = _constant(random, kind, column, table)
    if kind == "timestamp" and random.random() < 0.5:
        return Cast(Constant(time_text(constant.value), "string"), kind)
    return constant


def _json_leaf(random: Random, column: Column, table: Table) -> Question:
    if ".".join(column.path) == "n.i":
        column = Column(("n.i",), "integer")  # in JSON, the column of that very name
    own = column.type if column.type in KINDS else random.choice(("integer", "double"))
    kind = own if random.random() < 0.8 else random.choice(list(KINDS))
    term: Term = column if kind == column.type else Cast(column, kind)
    form = random.random()
    if form < 0.15:
        return Missing(term)
    if form < 0.2:
        return Opaque(random.randint(0, 2))
    if form < 0.25 and (booleans := [one for one in table.columns if one.type == "boolean"]):
        return Holds(random.choice(booleans))
    if form < 0.35:
        return OneOf(
            term, tuple(_constant(random, kind, column, table) for _ in range(random.choice((2, 3, 4, 20))))
        )
    if form < 0.45:
        return Same(term, _constant(random, kind, column, table))
    pair = [term, _constant(random, kind, column, table)]
    return Comparison(random.choice(OPERATORS), *random.choice((pair, pair, pair[::-1])))


def as_json(question: Question, random: Random) -> dict[str, Any]:
    """The predicate as Spark's connector sends it."""
    match question:
        case Comparison(sign, left, right):
            return {"op": JSON_NAMES[sign], "children": [_json_term(left, random), _json_term(right, random)]}
        case OneOf(value, options):
            return _json_node("or", [as_json(Comparison("=", value, option), random) for option in options])
        case Same(left, right):
            nulls = [as_json(Missing(term), random) for term in (left, right)]
            set_and_equal = [_json_node("not", [one]) for one in nulls]
            set_and_equal.append(as_json(Comparison("=", left, right), random))
            return _json_node("or", [_json_node("and", nulls), _json_node("and", set_and_equal)])
        case Missing(value):
            return _json_node("isNull", [_json_term(value, random)])
        case Holds(value):
            return _json_term(value, random)
        case Opaque(number):
            text = {"op": "literal", "value": random.choice(TEXTS), "valueType": "string"}
            collated = _json_node("equal", [{"op": "column", "name": "s", "valueType": "string"}, text])
            collated["exprCtx"] = {"collationIdentifier": "spark.UTF8_LCASE.75.1"}
            return [{"op": "soundsLike", "children": 5}, {"op": "equal", "children": []}, collated][number]
        case Negation(part):
            return _json_node("not", [as_json(part, random)])
        case Every(parts) | Some(parts):
            name = "and" if isinstance(question, Every) else "or"
            return _json_node(name, [as_json(part, random) for part in parts])
        case _:
            raise AssertionError(f"not for JSON: {question}")


def _json_node(name: str, children: list[Any]) -> dict[str, Any]:
    return {"op": name, "children": children}


def _json_term(term: Term, random: Random) -> dict[str, Any]:
    match term:
        case Cast(Column(path), kind) | Column(path, kind):
            name = ".".join(path)
            return {"op": "column", "name": random.choice((name, name.upper())), "valueType": KINDS[kind]}
        case Constant(value, kind):
            return {"op": "literal", "value": json_text(value, kind), "valueType": KINDS[kind]}
        case _:
            raise AssertionError(f"not for JSON: {term}")


def json_text(value: Any, kind: str) -> str:
    """A constant's text as Spark's connector writes it: times cut to milliseconds, towards 1970."""
    if kind == "date":
        return date_text(value)
    if kind == "timestamp":
        cut = abs(value) // 1000 * 1000
        return time_text(cut if value > 0 else -cut, "T") + "Z"
    if kind in ("float", "double"):
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(
            str(value), number_text(value, kind)
        )
    return str(value).lower() if kind == "boolean" else str(value)


def _sql_leaf(random: Random, column: Column, table: Table) -> Question:
    if random.random() < 0.1:
        return _plain_sql_leaf(random, column, table)
    kind = (
        column.type
        if column.type != "binary" and random.random() < 0.6
        else random.choice(OTHERS[column.type])
    )
    term: Term = column
    if random.random() < 0.15 and column.type != "binary":
        term = Cast(column, random.choice([one for one in SQL_TYPES if one != column.type]))
    form = random.random()
    if form < 0.1:
        return Missing(term)
    if form < 0.2:
        kinds = [_another(random, kind, column) for _ in range(random.choice((1, 2, 3, 20)))]
        return OneOf(term, tuple(_sql_constant_of(random, one, column, table) for one in kinds))
    if form < 0.3:
        return Same(term, _sql_constant_of(random, kind, column, table))
    if form < 0.4:
        ends = [_sql_constant_of(random, _another(random, kind, column), column, table) for _ in range(2)]
        return Every((Comparison(">=", term, ends[0]), Comparison("<=", term, ends[1])))
    pair = [term, _sql_constant_of(random, kind, column, table)]
    return Comparison(random.choice(OPERATORS), *random.choice((pair, pair, pair[::-1])))


def _another(random: Random, kind: str, column: Column) -> str:
    is_same = random.random() < 0.8 or column.type == "binary"
    return kind if is_same else random.choice((column.type, *OTHERS[column.type]))


def _plain_sql_leaf(random: Random, column: Column, table: Table) -> Question:
    texts = [one for one in table.columns if one.type == "string"]
    booleans = [one for one in table.columns if one.type == "boolean"]
    prefix = random.choice([text for text in TEXTS + LONG_TEXTS if not set(text) & set("%_\\")])
    forms: list[Question] = [Opaque(random.randint(0, 2))]
    if booleans:
        forms.append(Holds(random.choice(booleans)))
    if texts:
        forms.append(Begins(random.choice(texts), prefix[: random.randint(0, 40)]))
    return random.choice(forms)


def as_sql(question: Question, random: Random) -> str:
    """The predicate as SQL."""
    match question:
        case Comparison(sign, left, right):
            if sign == "=" and random.random() < 0.1:
                return f"NOT ({_sql_term(left, random)} <> {_sql_term(right, random)})"
            return f"{_sql_term(left, random)} {sign} {_sql_term(right, random)}"
        case Same(left, right):
            return f"{_sql_term(left, random)} <=> {_sql_term(right, random)}"
        case OneOf(value, options):
            return f"{_sql_term(value, random)} IN ({', '.join(_sql_term(one, random) for one in options)})"
        case Begins(value, prefix):
            text = _quoted(prefix)
            return random.choice(
                (
                    f"{_sql_term(value, random)} LIKE {text[:-1]}%'",
                    f"startswith({_sql_term(value, random)}, {text})",
                )
            )
        case Missing(value):
            return f"{_sql_term(value, random)} IS NULL"
        case Holds(value):
            return _sql_term(value, random)
        case Opaque(number):
            return ["rlike(s, 'a')", "length(s) + i > 3", "nowhere = 1"][number]
        case Negation(part):
            return _negated(part, random)
        case Every(parts) | Some(parts):
            word = " AND " if isinstance(question, Every) else " OR "
            return "(" + word.join(f"({as_sql(part, random)})" for part in parts) + ")"


def _negated(part: Question, random: Random) -> str:
    if isinstance(part, Missing) and random.random() < 0.5:
        return f"{_sql_term(part.value, random)} IS NOT NULL"
    return f"NOT ({as_sql(part, random)})"


def _sql_term(term: Term, random: Random) -> str:
    match term:
        case Column(path):
            plain = [name.isascii() and "." not in name and random.random() < 0.7 for name in path]
            names = [name if is_plain else f"`{name}`" for name, is_plain in zip(path, plain, strict=True)]
            # Tables may be called what structs are called: `n.i` is a column i then, and this one says it is.
            qualifiers = ("", "", "", "spark_catalog.default.tab.", "tab.", "n." if len(path) == 1 else "")
            return random.choice(qualifiers) + ".".join(names)
        case Cast(Constant(text, _), kind) if random.random() < 0.7:
            return f"{SQL_TYPES[kind]} '{text}'"
        case Cast(inner, kind):
            return f"CAST({_sql_term(inner, random)} AS {SQL_TYPES[kind]})"
        case Constant(value, kind):
            return _sql_constant(value, kind, random)


def _sql_constant(value: Any, kind: str, random: Random) -> str:
    if kind in ("float", "double"):
        text = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(
            str(value), number_text(value, kind)
        )
        suffixed = text + ("F" if kind == "float" else "D")
        is_plain = math.isfinite(value) and "e" not in text
        return suffixed if is_plain and random.random() < 0.7 else f"CAST('{text}' AS {SQL_TYPES[kind]})"
    if kind in BITS:
        return str(value) + {"long": "L", "short": "S", "byte": "Y"}.get(kind, "")
    if isinstance(value, Decimal):
        return f"{value:f}" + random.choice(("", "BD"))
    if kind == "boolean":
        return str(value).upper()
    return _quoted(value) if kind == "string" else _sql_moment(value, kind, random)


def _sql_moment(value: int, kind: str, random: Random) -> str:
    if kind == "date":
        return random.choice((f"DATE '{date_text(value)}'", f"CAST('{date_text(value)}' AS DATE)"))
    if kind == "timestamp_ntz":
        return f"TIMESTAMP_NTZ '{time_text(value)}'"
    return f"TIMESTAMP '{time_text(value)}{random.choice(('Z', '+00:00'))}'"


def _quoted(text: str) -> str:
    return (
        "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\x00", "\\0") + "'"
    )
