"""Draft of a contract from a profile: guesses with their reasons, written as YAML with each reason in a comment.

A draft loads, and the sample that it was made from passes its audit. Guessed rules have severity warning.
"""

import datetime as dt
import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lakeshare_pipelines.contracts.column_types import DEFAULTS, get_base_type
from lakeshare_pipelines.ingest.profile import (
    CONTRACT_TYPES,
    NULL_TOKENS,
    NUMBERS,
    ColumnProfile,
    Profile,
    Report,
    Sample,
    classify,
    find_unique,
    profile_sample,
)

TableFormat = Literal["iceberg", "delta"]

PARTITION_ROWS = 100_000  # Rows of a day from which on its files are large enough for a partition of its own
VALUES_REPEAT = 5  # A set of values is guessed if each value occurs this often on average
KEY_ROWS = 100  # Below this number of rows only a column with a name like `id` is a key


@dataclass(frozen=True)
class RuleGuess:
    expectation: str
    arguments: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class ColumnGuess:
    """A column of the draft. `reasons` explain its type and properties, one for each guess."""

    name: str
    source: str | None
    type: str
    required: bool
    reasons: tuple[str, ...]
    pii: bool = False
    is_key: bool = False
    is_partition: bool = False
    rules: tuple[RuleGuess, ...] = ()


@dataclass(frozen=True)
class Draft:
    """A drafted contract of one table."""

    set_name: str
    table: str
    title: str
    rows: int
    format: TableFormat
    source: str
    columns: tuple[ColumnGuess, ...]
    table_reasons: tuple[str, ...] = ()
    reading: Mapping[str, Any] = field(default_factory=dict)
    max_quarantined_fraction: float = 0.0
    share: str | None = None


def draft_contract(
    sample: Sample,
    *,
    table_format: TableFormat = "delta",
    set_name: str | None = None,
    share: str | None = None,
    report: Report = lambda _: None,
) -> Draft:
    """Profiles a sample and guesses its contract."""
    report(f"reading {sample.title} …")
    profile = profile_sample(sample, report)
    names = make_names([*sample.columns, *sample.nested])
    typed = {one.name: guess_type(one) for one in profile.columns}
    complete = [one for one in profile.columns if one.filled == profile.rows and profile.rows > 0]
    key = _find_key(sample, profile, [one for one in complete if typed[one.name][0] in KEY_TYPES])
    partition, partition_reason = guess_partition(profile, {name: kind for name, (kind, _) in typed.items()})
    columns = []
    for one in profile.columns:
        kind, reason = typed[one.name]
        in_key = (
            "unique in the sample" if key == (one.name,) else "a part of the key" if one.name in key else ""
        )
        columns.append(
            _guess_column(one, profile.rows, names[one.name], kind, reason, in_key, one.name == partition)
        )
    for name, kind in sample.nested.items():
        reasons = [f"type {kind}, as in the data; nested values have no profile"]
        if names[name] != name:
            reasons.append(f"source: {name!r} is no name that a contract can have")
        source = None if names[name] == name else name
        columns.append(ColumnGuess(names[name], source, kind, required=False, reasons=tuple(reasons)))
    table = make_names([sample.name])[sample.name]
    return Draft(
        set_name=set_name or table,
        table=table,
        title=sample.title,
        rows=profile.rows,
        format=table_format,
        source=sample.source,
        columns=tuple(columns),
        table_reasons=tuple(_explain_table(sample, profile, [names[name] for name in key], partition_reason)),
        reading=_make_reading(sample, profile),
        max_quarantined_fraction=_guess_quarantine(profile),
        share=share,
    )


KEY_TYPES = ("int", "bigint", "string", "date")
KEY_NAME = re.compile(r"(^|_)(id|key|uuid|guid|pk|code|number|nr|no|sku|isbn|ean|iata|faa)$")
COUNTER_NAME = re.compile(r"(^|_)(id|key|zip|plz|postcode|code|number|nr|no|phone|year|month|day|hour)$")


def to_words(name: str) -> str:
    """Returns a name in lower case with `_` between its words: `order_id` for `OrderID`."""
    plain = unicodedata.normalize("NFKD", name.replace("ß", "ss")).encode("ascii", "ignore").decode()
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", plain)
    return re.sub(r"[^a-z0-9]+", "_", split.lower()).strip("_")


def make_names(names: Sequence[str]) -> dict[str, str]:
    """Returns a name that a contract can have for each name; valid ones stay as they are.

    Names that differ in case only, or not at all in letters and digits, get a number.
    """
    taken: set[str] = set()
    made = {}
    for place, name in enumerate(names, 1):
        valid = name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else to_words(name)
        valid = valid if valid else f"column_{place}"
        valid = f"_{valid}" if valid[0].isdigit() else valid
        candidate, number = valid, 2
        while candidate.lower() in taken:
            candidate, number = f"{valid}_{number}", number + 1
        taken.add(candidate.lower())
        made[name] = candidate
    return made


def _find_key(sample: Sample, profile: Profile, complete: Sequence[ColumnProfile]) -> tuple[str, ...]:
    def rank(column: ColumnProfile) -> tuple[bool, bool, int]:
        words = to_words(column.name)
        return (not KEY_NAME.search(words), get_base_type(guess_type(column)[0]) == "date", column.place)

    if profile.rows < KEY_ROWS:
        # Among few rows nearly everything is unique.
        complete = [one for one in complete if KEY_NAME.search(to_words(one.name))]
    return find_unique(sample, profile, sorted(complete, key=rank)) if profile.rows > 1 else ()


MAX_DECIMAL_SCALE = 6


def guess_type(column: ColumnProfile) -> tuple[str, str]:
    """Returns the type of a column and the reason for it."""
    if column.type == "binary" and column.filled and "string" in column.classes:
        return "string", "type string: every value of the binary column is text"
    if column.type not in (None, "void"):
        kind = CONTRACT_TYPES.get(column.type, column.type)
        return kind, f"type {kind}, as in the data"
    classes = column.classes - set(NULL_TOKENS)
    if not classes:
        return "string", "every value is empty, so that its type is not known"
    if classes <= {"int"}:
        return "int", f"type int: whole numbers from {column.low:.0f} to {column.high:.0f}"
    if classes <= {"int", "bigint"}:
        return "bigint", "type bigint: whole numbers that are too large for int"
    if classes <= set(NUMBERS):
        return _guess_fraction(column, classes)
    for kind in ("boolean", "date"):
        if classes == {kind}:
            return kind, f"type {kind}: every value is one"
    if classes <= {"date", "timestamp"}:
        return "timestamp", "type timestamp; times without a zone are read as UTC"
    return "string", _explain_text(column)


def _guess_fraction(column: ColumnProfile, classes: frozenset[str]) -> tuple[str, str]:
    digits = len(str(int(max(abs(column.low), abs(column.high)))))
    if "double" in classes:
        return "double", "type double: numbers with an exponent"
    if column.scale > MAX_DECIMAL_SCALE:
        return "double", f"type double: up to {column.scale} digits after the point"
    precision = max(digits + 2, 8) + column.scale
    kind = f"decimal({precision},{column.scale})"
    return kind, f"type {kind}: at most {column.scale} digits after the point and {digits} before it"


OTHER_DAYS = {
    r"^\d{1,2}/\d{1,2}/\d{4}$": "d/M/yyyy (or M/d/yyyy)",
    r"^\d{1,2}\.\d{1,2}\.\d{4}$": "d.M.yyyy",
    r"^\d{4}/\d{1,2}/\d{1,2}$": "yyyy/M/d",
}


def _explain_text(column: ColumnProfile) -> str:
    others = {classify(text) for text in column.examples} | set(column.classes)
    others -= {"string", "token", *NULL_TOKENS}
    if others:
        kinds = " and ".join(sorted(others))
        return f"type string: texts and values of type {kinds} are mixed"
    if column.examples and all(re.fullmatch(r"[+-]?0?\d+", text) for text in column.examples):
        return "type string: digits with leading zeros, a plus sign or more than 18 digits, which a number would lose"
    for pattern, shown in OTHER_DAYS.items():
        if column.examples and all(re.match(pattern, text) for text in column.examples):
            return (
                f"type string; these look like days written as {shown}: a column of type date with "
                "transformLogic: try_to_date(…) would hold them"
            )
    return "type string"


def _guess_column(
    column: ColumnProfile, rows: int, name: str, kind: str, reason: str, in_key: str, is_partition: bool
) -> ColumnGuess:
    required = rows > 0 and column.filled == rows
    pii = guess_pii(column)
    # The reasons of numbers name values.
    reasons = [reason if pii is None or kind == "string" else f"type {kind}"]
    if required:
        reasons.append(f"required: none of {rows:,} values is empty")
    elif rows:
        reasons.append(f"may be empty: {rows - column.filled:,} of {rows:,} values are")
    if name != column.name:
        reasons.append(f"source: {column.name!r} is no name that a contract can have")
    if in_key:
        reasons.append(f"primaryKey: {in_key}")
    if pii is not None:
        reasons.append(f"classification pii: {pii}")
    return ColumnGuess(
        name=name,
        source=None if name == column.name else column.name,
        type=kind,
        required=required,
        reasons=tuple(reasons),
        pii=pii is not None,
        is_key=bool(in_key),
        is_partition=is_partition,
        rules=() if pii is not None else tuple(guess_rules(column, rows, kind, is_key=bool(in_key))),
    )


PII_NAMES = re.compile(
    r"(^|_)(e?_?mail|email_address|mail_address|phone|telephone|telefon|tel|mobile|fax|first_?name|last_?name|"
    r"full_?name|surname|forename|given_name|family_name|vorname|nachname|maiden_name|street|strasse|address|addr|anschrift|"
    r"birth_?day|birth_?date|date_of_birth|dob|geburtsdatum|ssn|social_security|passport|iban|bic|"
    r"tax_id|steuer_id|credit_card|card_number|ip|ip_address|passwort|password)(_?\d+)?$"
)
PII_VALUES = {
    "e-mail addresses": r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}",
    "phone numbers": r"\+\d[\d ()/.-]{6,}\d",
    "IBANs": r"[A-Z]{2}\d{2} ?([A-Z0-9]{4} ?){2,7}[A-Z0-9]{1,4}",
    "IP addresses": r"(\d{1,3}\.){3}\d{1,3}",
    "social security numbers": r"\d{3}-\d{2}-\d{4}",
}
PII_FRACTION = 0.8


def guess_pii(column: ColumnProfile) -> str | None:
    """Returns why a column may hold personal data; None if nothing indicates it."""
    words = to_words(column.name)
    if PII_NAMES.search(words):
        return "its name"
    for what, pattern in PII_VALUES.items():
        fitting = sum(re.fullmatch(pattern, text) is not None for text in column.examples)
        if column.examples and fitting >= PII_FRACTION * len(column.examples):
            return f"its values look like {what}"
    return None


def guess_rules(column: ColumnProfile, rows: int, kind: str, *, is_key: bool) -> Iterator[RuleGuess]:
    """Yields the rules of severity warning: a set of values, or a range with room around what was seen."""
    if len(column.values) > 1 and column.filled >= VALUES_REPEAT * len(column.values) and not is_key:
        reason = f"set of values: {len(column.values)} in {rows:,} rows"
        yield RuleGuess("expect_column_values_to_be_in_set", {"value_set": list(column.values)}, reason)
    if not isinstance(column.low, float) or is_key or COUNTER_NAME.search(to_words(column.name)):
        return
    if get_base_type(kind) in ("int", "bigint", "float", "double", "decimal"):
        if not (math.isfinite(column.low) and math.isfinite(column.high)) or column.low == column.high:
            return
        low = 0 if column.low >= 0 else -round_up(-1.5 * column.low)
        high = 0 if column.high <= 0 else round_up(1.5 * column.high)
        reason = f"range: {_format(column.low)} to {_format(column.high)} were seen, the limits leave room"
        yield RuleGuess("expect_column_values_to_be_between", {"min_value": low, "max_value": high}, reason)


def round_up(value: float) -> int | float:
    """Returns the least 1, 2 or 5 times a power of ten that is not below a positive value."""
    power = 10.0 ** math.floor(math.log10(value))
    found = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * (1 - 1e-12))
    return int(found) if found >= 1 else float(f"{found:.6g}")


def _format(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.6g}"


def guess_partition(profile: Profile, types: Mapping[str, str]) -> tuple[str | None, str]:
    """Returns the column to partition by, if days are large enough, and the reason for it or against it."""
    for column in profile.columns:
        if types[column.name] != "date" or column.filled < profile.rows or column.low in (None, column.high):
            continue
        # Rows with years outside 0001 to 9999 are rejected.
        if len(column.low) != 10 or len(column.high) != 10 or column.low < "0001":
            continue
        days = (dt.date.fromisoformat(column.high) - dt.date.fromisoformat(column.low)).days + 1
        rows_per_day = profile.rows // days
        if rows_per_day >= PARTITION_ROWS:
            return column.name, f"partitioned by {column.name}: about {rows_per_day:,} rows a day"
        return None, (
            f"not partitioned: by {column.name} there would be about {rows_per_day:,} rows a day, in small files. "
            "If deliveries arrive by day, mark it as partitioned and give partitioning: daily and firstPartition"
        )
    return None, ""


def _explain_table(
    sample: Sample, profile: Profile, key: Sequence[str], partition_reason: str
) -> Iterator[str]:
    if key:
        yield f"primary key: {', '.join(key)} {'is' if len(key) == 1 else 'are together'} unique in the sample"
    else:
        yield "no primary key: no column without empty values is unique, or the sample is too small to know"
    if partition_reason:
        yield partition_reason
    if profile.broken:
        yield f"maxQuarantinedFraction: {profile.broken:,} rows of the sample are broken; twice their part may be"
    if profile.tokens:
        yield f"nullValues: {', '.join(profile.tokens)} stand between values of another type"
    if sample.reading.delimiter != ",":
        yield f"delimiter: {sample.reading.delimiter!r} divides the lines into equally many fields"
    if sample.reading.multiline:
        yield "multiline: rows go over several lines"
    if sample.reading.row_tag is not None:
        yield f"rowTag: <{sample.reading.row_tag}> is the outermost element that is repeated"
    for name, kind in sample.skipped.items():
        yield f"left out: {name} is {kind}, which a contract cannot have; deliver the files without it"


def _make_reading(sample: Sample, profile: Profile) -> dict[str, Any]:
    reading: dict[str, Any] = {}
    if profile.tokens:
        reading["nullValues"] = ["", *profile.tokens]
    if sample.reading.delimiter != ",":
        reading["delimiter"] = sample.reading.delimiter
    if sample.reading.multiline:
        reading["multiline"] = True
    if sample.reading.row_tag is not None:
        reading["rowTag"] = sample.reading.row_tag
    return reading


def _guess_quarantine(profile: Profile) -> float:
    if not profile.broken:
        return 0.0
    fraction = 2 * profile.broken / (profile.broken + profile.rows)
    return min(1.0, math.ceil(fraction * 10_000) / 10_000)


LOGICAL_TYPES = {
    "binary": "string",
    "struct": "object",
    "map": "object",
    "int": "integer",
    "bigint": "integer",
    "float": "number",
    "double": "number",
    "decimal": "number",
}

HEADER = """\
# Drafted by `lakeshare contract draft` from {title}: {rows:,} rows.
# Comments give the reason for each guess. Check them, above all what is personal data, then delete them.
# `lakeshare contract test` runs the audit on files without publishing.
apiVersion: v3.1.0
kind: DataContract
id: {set_name}
name: {set_name}
version: 0.1.0
status: draft
description:
  purpose: {purpose}
servers:
  - {{server: lake, type: local, path: warehouse, format: {format}}}

schema:
  - name: {table}
    physicalName: {physical_name}
"""


def render(draft: Draft) -> str:
    """Returns the contract as YAML in which every guess has its reason as a comment."""
    lines = [
        HEADER.format(
            title=_to_one_line(draft.title),
            rows=draft.rows,
            set_name=_scalar(draft.set_name),
            table=_scalar(draft.table),
            physical_name=f"{draft.set_name}.{draft.table}",
            format=draft.format,
            purpose=_scalar(f"The rows of {draft.title}; describe what they are for."),
        ).rstrip("\n")
    ]
    lines += [f"    # {_to_one_line(reason)}" for reason in draft.table_reasons]
    lines.append("    customProperties:")
    lines.append(f"      - {{property: source, value: {_scalar(draft.source)}}}")
    if draft.reading:
        lines.append(f"      - {{property: reading, value: {_flow(draft.reading)}}}")
    if draft.max_quarantined_fraction:
        lines.append(f"      - {{property: maxQuarantinedFraction, value: {draft.max_quarantined_fraction}}}")
    lines.append("    properties:")
    keys = [column.name for column in draft.columns if column.is_key]
    for column in draft.columns:
        position = keys.index(column.name) + 1 if column.is_key else 0
        lines += _render_column(column, position)
    if draft.share is not None:
        names = [_scalar(name) for name in (draft.share, draft.set_name, draft.table)]
        entry = f"{{share: {names[0]}, schema: {names[1]}, tables: [{names[2]}]}}"
        lines += ["", "customProperties:", "  - property: shares", "    value:", f"      - {entry}"]
    return "\n".join(lines) + "\n"


def _to_one_line(text: str) -> str:
    """A text for a comment: names of files and columns may have line ends."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _render_column(column: ColumnGuess, key_position: int) -> Iterator[str]:
    for reason in column.reasons:
        yield f"      # {_to_one_line(reason)}"
    base = get_base_type(column.type)
    logical = LOGICAL_TYPES.get(base, base)
    yield f"      - name: {_scalar(column.name)}"
    yield f"        logicalType: {logical}"
    if DEFAULTS[logical] != column.type:
        yield f"        physicalType: {_scalar(column.type)}"
    if key_position:
        yield "        primaryKey: true"
        yield f"        primaryKeyPosition: {key_position}"
    elif column.required:
        yield "        required: true"
    if column.is_partition:
        yield "        partitioned: true"
        yield "        partitionKeyPosition: 1"
    if column.pii:
        yield "        classification: pii"
    if column.source is not None:
        yield f"        customProperties: [{{property: source, value: {_scalar(column.source)}}}]"
    if column.rules:
        yield "        quality:"
    for rule in column.rules:
        yield f"          # {rule.reason}"
        yield "          - type: custom"
        yield "            engine: greatExpectations"
        yield "            severity: warning"
        yield f"            implementation: {{type: {rule.expectation}, kwargs: {_flow(rule.arguments)}}}"


PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# YAML 1.1 reads these as other types.
RESERVED = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


def _scalar(value: object) -> str:
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in RESERVED:
        return value
    return json.dumps(value, ensure_ascii=False)


def _flow(values: Mapping[str, Any]) -> str:
    def show(value: Any) -> str:
        return f"[{', '.join(map(_scalar, value))}]" if isinstance(value, list) else _scalar(value)

    return f"{{{', '.join(f'{name}: {show(value)}' for name, value in values.items())}}}"
