"""An empty partition value is what delta-spark reads: '' for strings, no bytes for binary, null for any other type."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.builders.grants import grant_to
from tests.builders.sharing import Provider, a_provider, a_server, lines
from tests.builders.written_log import FEED, Action, WrittenLog, add, cdc, metadata, protocol, remove

DELTA = {"delta-sharing-capabilities": "responseformat=delta"}
# As delta-spark 4.4.0 reads a log with "" for each type, from snapshots and from the change data feed.
AS_SPARK_READS = {
    "string": "",
    "binary": "",
    **dict.fromkeys(("integer", "long", "double", "boolean", "date", "timestamp", "decimal(5,2)")),
}


def a_schema(kind: str) -> Action:
    fields = [("id", "long"), ("p", kind)]
    return {
        "type": "struct",
        "fields": [{"name": name, "type": of, "nullable": True, "metadata": {}} for name, of in fields],
    }


def a_log(folder: Path, kind: str) -> WrittenLog:
    """A file with an empty value, one with null and one that leaves it out; then their row-level changes."""
    log = WrittenLog(folder)
    log.commit(protocol(), metadata(FEED, schema=a_schema(kind)))
    values: list[dict[str, Any]] = [{"p": ""}, {"p": None}, {}]
    log.commit(*(add(str(place), partitionValues=value) for place, value in enumerate(values)))
    log.commit(
        *(cdc(str(place), partitionValues=value) for place, value in enumerate(values)),
        *(remove(str(place), partitionValues=value) for place, value in enumerate(values)),
    )
    log.commit(*(add(str(place), partitionValues=value) for place, value in enumerate(values)))
    return log


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    folder = tmp_path_factory.mktemp("empty")
    provider = a_provider(folder)
    names = {kind: f"lake.{kind.split('(')[0]}" for kind in AS_SPARK_READS}
    for kind, name in names.items():
        provider.follow(name, a_log(folder / name, kind).location, 3600.0)
    provider.share(*names.values(), share="s")
    return provider


@pytest.fixture(scope="module")
def client(provider: Provider) -> Iterator[httpx.Client]:
    with a_server(provider) as server, server.client(provider.recipient(shares=("s",))) as opened:
        yield opened


def values_of(found: list[Action]) -> list[Any]:
    """The partition values of all file lines, in the order of the files' names."""
    values = []
    for line in found:
        [(kind, action)] = line.items()
        if kind in ("protocol", "metaData"):
            continue
        if "deltaSingleAction" in action:
            [action] = action["deltaSingleAction"].values()
        path = str(action.get("url", action.get("path"))).split("?")[0]
        values.append((path.rsplit("/", 1)[-1], action["partitionValues"]["p"]))
    return [value for _, value in sorted(values, key=lambda pair: pair[0])]


@pytest.mark.parametrize("kind", AS_SPARK_READS)
def test_lines_say_what_delta_spark_reads(client: httpx.Client, kind: str) -> None:
    table = f"/shares/s/schemas/lake/tables/{kind.split('(')[0]}"
    wanted = [AS_SPARK_READS[kind], None, None]
    formats: list[dict[str, str]] = [DELTA] if kind == "binary" else [DELTA, {}]
    for headers in formats:
        snapshot = lines(client.post(f"{table}/query", json={}, headers=headers))
        assert values_of(snapshot) == wanted
        window = lines(client.post(f"{table}/query", json={"startingVersion": 3}, headers=headers))
        assert values_of(window) == wanted
        for version in (1, 2, 3):
            params = {"startingVersion": version, "endingVersion": version}
            changes = lines(client.get(f"{table}/changes", params=params, headers=headers))
            assert values_of(changes) == wanted


def test_predicates_lose_no_row_whether_the_client_takes_the_empty_string_for_a_value_or_for_null(
    client: httpx.Client,
) -> None:
    table = "/shares/s/schemas/lake/tables/string"
    column = {"op": "column", "name": "p", "valueType": "string"}
    is_empty = {"op": "equal", "children": [column, {"op": "literal", "value": "", "valueType": "string"}]}
    is_null = {"op": "isNull", "children": [column]}
    for predicate, wanted in ((is_empty, [""]), (is_null, ["", None, None])):
        found = lines(client.post(f"{table}/query", json={"jsonPredicateHints": json.dumps(predicate)}))
        assert values_of(found) == wanted


def test_rules_of_grants_tell_the_empty_string_from_null(provider: Provider) -> None:
    table = "/shares/s/schemas/lake/tables/string"
    for place, (rule, wanted) in enumerate((("p = ''", [""]), ("p IS NULL", [None, None]))):
        token = provider.recipient(f"ruled-{place}", shares=())
        grant_to(provider, f"ruled-{place}", "s", rule=rule)
        with a_server(provider) as server, server.client(token) as client:
            assert values_of(lines(client.post(f"{table}/query", json={}))) == wanted
            params = {"startingVersion": 2, "endingVersion": 2}
            assert values_of(lines(client.get(f"{table}/changes", params=params))) == wanted
