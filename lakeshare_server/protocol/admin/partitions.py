"""Partitions of a shared table, as the API has them, and the rule that they stand for."""

import re
from collections.abc import Sequence

from lakeshare_server.errors import BadRequest
from lakeshare_server.protocol.admin.replies import PartitionInfo, PartitionValueInfo
from lakeshare_server.protocol.admin.requests import Partition, PartitionValue

PROPERTY = re.compile(r"[^\s'\"`\\]{1,255}")
TEXT = r"'(?:[^']|'')*'"
COLUMN = r"`(?:[^`]|``)+`"
OF_RECIPIENT = rf"current_recipient\(({TEXT})\)"
# What `rule_of` writes, and nothing else.
TEST = re.compile(
    rf"(?P<name>{COLUMN}) (?:(?P<null>IS NULL)|(?P<op>=|LIKE) (?:(?P<value>{TEXT})|{OF_RECIPIENT}))"
)
FIELD = "partitions.values"
OPS = {"EQUAL": "=", "LIKE": "LIKE"}


def rule_of(partitions: Sequence[Partition]) -> str | None:
    """The rule that any of the partitions holds; None when there are none.

    Raises:
        BadRequest: a partition tests nothing, or a test has no meaning.
    """
    for number, partition in enumerate(partitions):
        if not partition.values:
            raise BadRequest(f"partitions.{number}.values", [], "Give at least one test, or no partition.")
    groups = [" AND ".join(_test(value) for value in partition.values) for partition in partitions]
    return " OR ".join(f"({group})" for group in groups) or None


def partitions_of(rule: str | None) -> list[PartitionInfo] | None:
    """The partitions that a rule stands for; None when it says something that partitions cannot."""
    if rule is None:
        return []
    found: list[PartitionInfo] = []
    position = 0
    while position < len(rule):
        position = _skipped(rule, position, " OR (" if found else "(")
        values, position = _tests(rule, position)
        if position < 0:
            return None
        found.append(PartitionInfo(values=values))
    return found


def _tests(rule: str, position: int) -> tuple[list[PartitionValueInfo], int]:
    values: list[PartitionValueInfo] = []
    while position >= 0:
        test = TEST.match(rule, position)
        if test is None:
            return values, -1
        values.append(_told(test))
        if rule.startswith(")", test.end()):
            return values, test.end() + 1
        position = _skipped(rule, test.end(), " AND ")
    return values, -1


def _skipped(rule: str, position: int, word: str) -> int:
    return position + len(word) if position >= 0 and rule.startswith(word, position) else -1


def _told(test: re.Match[str]) -> PartitionValueInfo:
    name = test["name"][1:-1].replace("``", "`")
    value, key = test["value"], test[5]
    return PartitionValueInfo(
        name=name,
        op="LIKE" if test["op"] == "LIKE" else "EQUAL",
        value=None if value is None else value[1:-1].replace("''", "'"),
        recipient_property_key=None if key is None else key[1:-1].replace("''", "'"),
    )


def _test(test: PartitionValue) -> str:
    if not test.name:
        raise BadRequest(f"{FIELD}.name", test.name, "Name a partition column.")
    column = "`" + test.name.replace("`", "``") + "`"
    if test.recipient_property_key is not None:
        return f"{column} = current_recipient('{_property(test)}')"
    if test.value is None:
        if test.op != "EQUAL":
            raise BadRequest(f"{FIELD}.op", test.op, "Null is tested by EQUAL.")
        return f"{column} IS NULL"
    if "\\" in test.value:
        raise BadRequest(f"{FIELD}.value", test.value, "Rules have no backslashes; share a filtered view.")
    if test.op == "LIKE" and {"%", "_"} & set(test.value.removesuffix("%")):
        raise BadRequest(f"{FIELD}.value", test.value, "LIKE takes the beginning of a text, like EU%.")
    return f"{column} {OPS[test.op]} '" + test.value.replace("'", "''") + "'"


def _property(test: PartitionValue) -> str:
    key = test.recipient_property_key or ""
    if test.value is not None:
        raise BadRequest(f"{FIELD}.value", test.value, "Give it or recipient_property_key, not both.")
    if test.op != "EQUAL":
        raise BadRequest(f"{FIELD}.op", test.op, "A property is compared by EQUAL.")
    if not PROPERTY.fullmatch(key):
        hint = "Give the key of a recipient's property, without space or quote."
        raise BadRequest(f"{FIELD}.recipient_property_key", key, hint)
    return key
