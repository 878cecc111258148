"""Pages of a query: together they are the answer in one piece, whatever their size and whatever is committed meanwhile.

Over HTTP with published and followed tables, and by generated tables, predicates and limits without.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_server.protocol import lines as answers
from lakeshare_server.protocol.lines import Progress, SnapshotLines, SnapshotResponse
from lakeshare_server.protocol.requests import MAX_INT, parse_json_predicate
from lakeshare_server.tables import TableHead, TableSnapshot, open_index, write_index
from lakeshare_server.tables import index as index_writing
from lakeshare_server.tables.index import FileIndex
from lakeshare_server.tables.predicates import EVERYTHING, Predicate
from tests.builders.campaign import campaign_size
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.sharing import (
    LONG,
    LONG_FILES,
    Provider,
    a_provider,
    a_server,
    files,
    lines,
    share_long_table,
)

DELTA = {"delta-sharing-capabilities": "responseformat=delta"}
DAYS = 7
ANY_DAY = {"jsonPredicateHints": json.dumps({"op": "not", "children": [{"op": "equal", "children": [
    {"op": "column", "name": "day", "valueType": "date"},
    {"op": "literal", "value": "2013-01-03", "valueType": "date"},
]}]})}  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("paging")


@pytest.fixture(scope="module")
def provider(tables: Path) -> Provider:
    provider = a_provider(tables, page_files=1000)
    provider.publish_delta("lake.published", a_delta_table(tables / "published", some_rows(days=DAYS)))
    provider.follow("lake.followed", a_delta_table(tables / "followed", some_rows(days=DAYS)))
    share_long_table(provider)
    provider.share("lake.published", "lake.followed", "lake.long")
    return provider


@pytest.fixture(scope="module")
def client(provider: Provider) -> Iterator[httpx.Client]:
    with a_server(provider) as server, server.client(provider.recipient()) as client:
        yield client


def path_of(table: str) -> str:
    return f"/shares/flights/schemas/lake/tables/{table}/query"


def pages(
    client: httpx.Client,
    path: str,
    body: dict[str, Any],
    headers: dict[str, str] | None = None,
    between: Callable[[], None] = lambda: None,
) -> list[httpx.Response]:
    """All pages of a question, as a client asks for them; `between` happens before each but the first."""
    found = [client.post(path, json=body, headers=headers)]
    while token := lines(found[-1])[-1]["endStreamAction"].get("nextPageToken"):
        between()
        found.append(client.post(path, json={**body, "pageToken": token}, headers=headers))
        assert len(found) < 100
    return found


def same_file(file: dict[str, Any]) -> dict[str, Any]:
    """The file without what is signed anew for each page."""
    told = {key: value for key, value in file.items() if key not in ("url", "expirationTimestamp")}
    if "deltaSingleAction" in told:
        add = told["deltaSingleAction"]["add"]
        told["deltaSingleAction"] = {"add": {**add, "path": httpx.URL(add["path"]).path}}
    return told


QUESTIONS: dict[str, dict[str, Any]] = {
    "everything": {},
    "a version": {"version": 0},
    "a hint": ANY_DAY,
    "an SQL hint": {"predicateHints": ["day >= '2013-01-03'"]},
    "a limit within a page": {"limitHint": 1},
    "a limit over pages": {"limitHint": 17},
    "a limit at the end of a page": {"limitHint": 8},
    "a hint and a limit": {**ANY_DAY, "limitHint": 9},
    "nothing that is there": {"predicateHints": ["day = '1999-01-01'"]},
    "no row at all": {"limitHint": 0},
}


@pytest.mark.parametrize("headers", [{}, DELTA], ids=["parquet", "delta"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("question", QUESTIONS)
def test_all_pages_together_are_the_answer_in_one_piece(
    client: httpx.Client, question: str, size: int, headers: dict[str, str]
) -> None:
    """protocol §1.7 paging: at most `maxFiles` files, limits over the whole, a closing line on each page."""
    body = QUESTIONS[question]
    whole = client.post(path_of("published"), json=body, headers=headers)
    found = pages(client, path_of("published"), {**body, "maxFiles": size}, headers)
    assert [same_file(file) for page in found for file in files(page)] == [
        same_file(file) for file in files(whole)
    ]
    assert [len(files(page)) for page in found[:-1]] == [size] * (len(found) - 1)
    assert 0 < len(files(found[-1])) <= size or len(found) == 1
    for page in found:
        assert lines(page)[-1].keys() == {"endStreamAction"}


@pytest.mark.parametrize("headers", [{}, DELTA], ids=["parquet", "delta"])
@pytest.mark.parametrize("table", ["published", "followed"])
def test_every_page_begins_with_the_very_same_lines(
    client: httpx.Client, table: str, headers: dict[str, str]
) -> None:
    """protocol §0.10: Spark wants them byte for byte, with the same version and format."""
    found = pages(client, path_of(table), {"maxFiles": 3}, headers)
    assert len(found) == 3
    assert len({page.content.splitlines()[0] for page in found}) == 1
    assert len({page.content.splitlines()[1] for page in found}) == 1
    assert len({page.headers["delta-table-version"] for page in found}) == 1
    assert len({page.headers["delta-sharing-capabilities"] for page in found}) == 1


@pytest.mark.parametrize("kind", ["published", "followed"])
def test_commits_between_pages_are_not_seen(
    provider: Provider, client: httpx.Client, tmp_path: Path, kind: str
) -> None:
    """protocol §1.7: page one pins the version; whoever begins anew sees what came meanwhile."""
    location = a_delta_table(tmp_path / "table", some_rows(days=DAYS))
    name = f"lake.growing-{kind}"
    if kind == "published":
        provider.publish_delta(name, location)
    else:
        provider.follow(name, location)
    provider.share("lake.published", "lake.followed", "lake.long", name)

    def grow() -> None:
        append_delta(location, some_rows(days=2))
        if kind == "published":
            provider.publish_delta(name, location)

    path = path_of(name.removeprefix("lake."))
    before = [same_file(file) for file in files(client.post(path))]
    found = pages(client, path, {"maxFiles": 2}, between=grow)
    assert len(found) == 4
    assert [same_file(file) for page in found for file in files(page)] == before
    assert {page.headers["delta-table-version"] for page in found} == {"0"}
    assert len({page.content.splitlines()[1] for page in found}) == 1
    after = client.post(path)
    assert after.headers["delta-table-version"] == "3"
    assert len(files(after)) == DAYS + 6


def test_a_page_is_no_longer_than_the_server_allows(client: httpx.Client) -> None:
    """protocol §1.7: min of `maxFiles` and the server's cap; without `maxFiles` the answer is in one piece."""
    found = pages(client, f"{LONG}/query", {"maxFiles": 10**6})
    assert [len(files(page)) for page in found] == [1000, 1000, 500]
    assert len(files(client.post(f"{LONG}/query"))) == LONG_FILES
    assert "nextPageToken" not in client.post(f"{LONG}/query").text


def test_the_size_of_a_page_may_change_on_the_way(client: httpx.Client) -> None:
    whole = [same_file(file) for file in files(client.post(f"{LONG}/query"))]
    found = []
    body: dict[str, Any] = {"maxFiles": 1}
    for size in (999, 3, None, 1000):
        page = client.post(f"{LONG}/query", json=body)
        found += [same_file(file) for file in files(page)]
        body = {"pageToken": lines(page)[-1]["endStreamAction"]["nextPageToken"]}
        body |= {} if size is None else {"maxFiles": size}
    assert found == whole[: 1 + 999 + 3 + 1000]


def test_a_page_can_be_asked_for_again(client: httpx.Client) -> None:
    """A client whose connection broke repeats its request."""
    first = client.post(path_of("published"), json={"maxFiles": 2})
    token = lines(first)[-1]["endStreamAction"]["nextPageToken"]
    again = [client.post(path_of("published"), json={"maxFiles": 2, "pageToken": token}) for _ in range(2)]
    assert [same_file(file) for file in files(again[0])] == [same_file(file) for file in files(again[1])]


def test_a_refreshed_answer_comes_in_pages_too(client: httpx.Client) -> None:
    """protocol §1.7: `refreshToken` goes with the first page; the pages after it are of the pinned version."""
    whole = client.post(path_of("followed"), json={"includeRefreshToken": True})
    token = lines(whole)[-1]["endStreamAction"]["refreshToken"]
    first = client.post(path_of("followed"), json={"refreshToken": token, "maxFiles": 4})
    following = lines(first)[-1]["endStreamAction"]["nextPageToken"]
    second = client.post(path_of("followed"), json={"pageToken": following, "maxFiles": 4})
    both = [same_file(file) for page in (first, second) for file in files(page)]
    assert both == [same_file(file) for file in files(whole)]


ROWS_OF_A_BATCH = 4
SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("p", "integer"), ("n", "long"))
        ],
    }
)


@dataclass(frozen=True)
class File:
    """What a generated table says of a file; None is not known, or null for the partition."""

    partition: int | None
    rows: int | None
    deleted: int
    low: int | None
    high: int | None
    nulls: int | None


SMALL = st.integers(-3, 3)
FILES = st.builds(
    File,
    partition=st.none() | SMALL,
    rows=st.none() | st.integers(0, 6),
    deleted=st.integers(0, 2),
    low=st.none() | SMALL,
    high=st.none() | SMALL,
    nulls=st.none() | st.integers(0, 2),
)
LEAVES = st.builds(
    lambda op, name, value: {
        "op": op,
        "children": [
            {"op": "column", "name": name, "valueType": "long" if name == "n" else "int"},
            {"op": "literal", "value": str(value), "valueType": "long" if name == "n" else "int"},
        ],
    },
    st.sampled_from(["equal", "lessThan", "lessThanOrEqual", "greaterThan", "greaterThanOrEqual"]),
    st.sampled_from(["p", "n", "unknown"]),
    SMALL,
) | st.builds(
    lambda name: {"op": "isNull", "children": [{"op": "column", "name": name, "valueType": "int"}]},
    st.sampled_from(["p", "n"]),
)
PREDICATES = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(
            lambda op, children: {"op": op, "children": children},
            st.sampled_from(["and", "or"]),
            st.lists(inner, min_size=2, max_size=3),
        )
        | st.builds(lambda child: {"op": "not", "children": [child]}, inner)
    ),
    max_leaves=4,
)


def an_index(folder: Path, table: list[File]) -> FileIndex:
    """A real index of a few files a batch, as large ones are of thousands."""
    count = len(table)

    def column(name: str) -> pa.Array:
        return pa.array([getattr(file, name) for file in table], pa.int64())

    content = pa.table(
        {
            "path": pa.array([f"/lake/{number:04d}" for number in range(count)], pa.string()),
            "name": pa.array([f"{number:04d}" for number in range(count)], pa.string()),
            "size": pa.array(range(count), pa.int64()),
            "modification_time": pa.array(range(count), pa.int64()),
            "rows": column("rows"),
            "dv_cardinality": column("deleted"),
            "partition": pa.StructArray.from_arrays([column("partition").cast(pa.int32())], ["p"]),
            "min": pa.StructArray.from_arrays([column("low")], ["n"]),
            "max": pa.StructArray.from_arrays([column("high")], ["n"]),
            "null_count": pa.StructArray.from_arrays([column("nulls")], ["n"]),
        }
    )
    head = TableHead(table_id="id", schema_string=SCHEMA, partition_columns=("p",))
    snapshot = TableSnapshot(format="delta", location="/lake", head=head, files=content)
    index = open_index(folder, write_index(snapshot, folder).digest)
    assert all(batch.num_rows <= ROWS_OF_A_BATCH for batch in index.batches())
    return index


@pytest.fixture(scope="module")
def small_batches() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_writing, "BATCH_ROWS", ROWS_OF_A_BATCH)
        patch.setattr(index_writing, "CHUNK_ROWS", 12)
        patch.setattr(answers, "PIECE_ROWS", 3)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indexes")


WORDS = SnapshotLines(response_format="parquet", ids="parquet", expires_at_ms=0)


def told(answer: SnapshotResponse, progress: Progress | None = None) -> list[int]:
    """The numbers of the files in an answer."""
    sent = b"".join(answer.render(WORDS, lambda paths: paths, progress or Progress()))
    return [json.loads(line)["file"]["size"] for line in sent.splitlines()]


def paged(answer: SnapshotResponse, sizes: Iterator[int]) -> list[list[int]]:
    """The same, page by page."""
    found = []
    following: SnapshotResponse | None = answer
    while following is not None:
        size = next(sizes)
        progress = Progress()
        found.append(told(replace(following, most=size), progress))
        assert progress.files == len(found[-1]) <= size
        start = progress.next_place
        assert start is None or len(found[-1]) == size
        following = (
            None if start is None else replace(following, start=start, rows_wanted=progress.rows_wanted)
        )
    return found


@pytest.mark.campaign
@pytest.mark.usefixtures("small_batches")
@given(
    table=st.lists(FILES, max_size=30),
    tree=st.none() | PREDICATES,
    limit=st.none() | st.integers(0, 40) | st.just(MAX_INT),
    data=st.data(),
)
@settings(deadline=None, max_examples=campaign_size(in_ci=100, in_campaign=3_000))
def test_pages_of_any_size_tell_each_file_once_and_the_same_as_one_answer(
    folder: Path, table: list[File], tree: dict[str, Any] | None, limit: int | None, data: st.DataObject
) -> None:
    """protocol §1.7: limits apply over the whole, not per page."""
    predicate: Predicate = EVERYTHING if tree is None else parse_json_predicate(json.dumps(tree))
    answer = SnapshotResponse(index=an_index(folder, table), predicate=predicate, rows_wanted=limit)
    whole = told(answer)

    def sizes() -> Iterator[int]:
        while True:
            yield data.draw(st.integers(1, 12))

    found = paged(answer, sizes())
    assert [number for page in found for number in page] == whole
    assert all(found[1:]), "no page but the first is empty"
    unlimited = told(replace(answer, rows_wanted=None))
    assert unlimited == sorted(set(unlimited))
    assert whole == unlimited[: len(whole)]
    assert tree is not None or unlimited == list(range(len(table)))


@pytest.mark.usefixtures("small_batches")
@given(table=st.lists(FILES, max_size=30), limit=st.integers(0, 60))
@settings(deadline=None)
def test_a_limit_is_filled_by_rows_that_readers_see(folder: Path, table: list[File], limit: int) -> None:
    """protocol §1.7 limitHint: row counts less deleted rows, and files of unknown count fill nothing."""
    table = [replace(file, deleted=min(file.deleted, file.rows or 0)) for file in table]
    found = told(SnapshotResponse(index=an_index(folder, table), rows_wanted=limit))

    def rows(numbers: list[int]) -> int:
        return sum(
            (table[number].rows or 0) - table[number].deleted
            for number in numbers
            if table[number].rows is not None
        )

    assert rows(found) >= limit or len(found) == len(table)
    assert not found or rows(found[:-1]) < limit
    assert found == list(range(len(found)))
