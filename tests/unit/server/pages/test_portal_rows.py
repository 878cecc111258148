"""The portal's preview shows rows as a reader of the table gets them, of the files that its recipient may read."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakeshare_server.catalog.credentials import issue_token, rotate_token
from lakeshare_server.catalog.sharing import add_table, alter_table, create_recipient, create_share, editing
from lakeshare_server.catalog.states import SharedTable
from lakeshare_server.pages import portal
from tests.builders.deletion_vector import inline_descriptor, stored
from tests.builders.lake_tables import a_delta_table, append_delta, some_rows
from tests.builders.sharing import Provider, a_provider, a_server
from tests.builders.written_log import WrittenLog, add, metadata, protocol

API = "/portal/api/shares/shown/schemas/lake/tables"
MAPPED = {"delta.columnMapping.mode": "name"}
FEATURES = ("deletionVectors", "columnMapping")


def column(name: str, kind: Any, number: int | None = None, physical: str | None = None) -> dict[str, Any]:
    mapping = {} if number is None else {
        "delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical or name
    }  # fmt: skip
    return {"name": name, "type": kind, "nullable": True, "metadata": mapping}


def struct(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns)}


class Shown:
    """A provider that shares tables of hand-written logs, and what the portal shows of them."""

    def __init__(self, provider: Provider, folder: Path) -> None:
        self.provider, self.folder = provider, folder
        self.client = httpx.Client(verify=False)

    def table(self, name: str, rows: pa.Table | None = None, **given: Any) -> WrittenLog:
        """A table of one file with these rows, published and shared."""
        log = WrittenLog(self.folder / name)
        schema, configuration = given.pop("schema"), given.pop("configuration", {})
        partitions = given.pop("partitions", ())
        if rows is not None:
            pq.write_table(rows, log.location / "one.parquet")
        log.commit(
            protocol(features=FEATURES),
            metadata(configuration, partitions=partitions, schema=schema),
            add(**{"path": "one.parquet", "partitionValues": {}, "stats": None, **given}),
        )
        self.share(name, log.location)
        return log

    def share(self, name: str, location: Path, **options: Any) -> None:
        self.provider.publish_delta(f"lake.{name}", location)
        with editing(self.provider.catalog, "steward") as edit:
            add_table(edit, "shown", SharedTable(schema="lake", name=name, table=f"lake.{name}", **options))

    def preview(self, name: str, status: int = 200, **asked: Any) -> Any:
        answer = self.client.get(f"{API}/{name}/preview", params=asked)
        assert answer.status_code == status, answer.text
        return answer.json()

    def rows(self, name: str) -> list[Sequence[str | None]]:
        found: list[Sequence[str | None]] = self.preview(name)["rows"]
        return found


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("rows")
    provider = a_provider(folder)
    with editing(provider.catalog, "steward") as edit:
        create_share(edit, "shown")
    token = provider.recipient(shares=("shown",))
    made = Shown(provider, folder)
    with a_server(provider) as server:
        root = server.url.removesuffix("/delta-sharing")
        with httpx.Client(
            verify=False, base_url=root, headers={"Authorization": f"Bearer {token}"}, timeout=30
        ) as client:
            made.client = client
            yield made


NUMBERS = pa.table({"id": pa.array(range(1000), pa.int64())})
IDS = struct(column("id", "long"))


def test_deleted_rows_are_left_out_wherever_their_vector_is(shown: Shown) -> None:
    deleted = [*range(5), 7, 300, 999]
    kept = [str(number) for number in range(1000) if number not in deleted]
    shown.table("inline", NUMBERS, schema=IDS, deletionVector=inline_descriptor(deleted))
    file, [_, place] = stored([[1], deleted])
    vector = {"storageType": "p", "pathOrInlineDv": (shown.folder / "file" / "dv é.bin").as_uri(), **place}
    (shown.folder / "file").mkdir()
    (shown.folder / "file" / "dv é.bin").write_bytes(file)
    log = WrittenLog(shown.folder / "file" / "table")
    pq.write_table(NUMBERS, log.location / "one.parquet")
    told = add("one.parquet", partitionValues={}, stats=None, deletionVector=vector)
    log.commit(protocol(features=FEATURES), metadata({}, partitions=(), schema=IDS), told)
    shown.share("stored", log.location)
    for name in ("inline", "stored"):
        assert [row[0] for row in shown.preview(name, limit=500)["rows"]] == kept[:500]
    for size in (int(place["offset"]) + 2, len(file) - 9):
        (shown.folder / "file" / "dv é.bin").write_bytes(file[:size])
        refused = shown.preview("stored", 400)["message"]
        assert ("a deletion vector is not whole" in refused, str(shown.folder) in refused) == (True, False)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_are_found_by_what_they_are_called_in_files(shown: Shown, mode: str) -> None:
    fields = [pa.field("c-1", pa.string()), pa.field("c-2", pa.struct([("c-3", pa.int32())]))]
    if mode == "id":
        # Files that were written before a column had its name there: only the id tells.
        fields = [
            field.with_metadata({"PARQUET:field_id": str(place)}) for place, field in enumerate(fields, 1)
        ]
        fields[0] = fields[0].with_name("old")
    rows = pa.table(
        [pa.array(["a", None]), pa.array([{"c-3": 5}, None], fields[1].type)], schema=pa.schema(fields)
    )
    schema = struct(
        column("text", "string", 1, "c-1"),
        column("nested", struct(column("number", "integer", 3, "c-3")), 2, "c-2"),
        column("later", "date", 4, "c-4"),
        column("part", "string", 5, "c-5"),
    )
    shown.table(
        f"mapped-{mode}",
        rows,
        schema=schema,
        configuration={"delta.columnMapping.mode": mode},
        partitions=("part",),
        partitionValues={"c-5": "p"},
    )
    found = shown.preview(f"mapped-{mode}")
    assert [one["name"] for one in found["columns"]] == ["text", "nested", "later", "part"]
    assert found["rows"] == [["a", '{"number": 5}', None, "p"], [None, None, None, "p"]]


def test_values_of_every_type_are_texts(shown: Shown) -> None:
    rows = pa.table(
        {
            "decimal": pa.array([Decimal("-1.50"), None], pa.decimal128(10, 2)),
            "binary": pa.array([bytes(range(20)), b""], pa.binary()),
            "timestamp": pa.array(
                [datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)],
                pa.timestamp("us", "UTC"),
            ),
            "long": pa.array([2**63 - 1, None], pa.int64()),
            "double": pa.array([float("inf"), -0.1], pa.float64()),
            "string": pa.array(["x" * 301, "<b>\u202e\x00"], pa.string()),
            "list": pa.array([[1, None], None], pa.list_(pa.int32())),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
            # Python has no dates after year 9999.
            "days": pa.array([[0, 3_000_000], [0]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
        }
    )
    nested = {
        "list": {"type": "array", "elementType": "integer", "containsNull": True},
        "map": {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True},
        "days": {"type": "array", "elementType": "date", "containsNull": True},
    }
    kinds = [(name, nested.get(name, name)) for name in rows.column_names]
    schema = struct(*(column(name, "decimal(10,2)" if name == "decimal" else kind) for name, kind in kinds))
    shown.table("typed", rows, schema=schema)
    first, second = shown.rows("typed")
    assert first == [
        *(
            "-1.50",
            "0x000102030405060708090a0b0c0d0e0f…",
            "2024-01-02 03:04:05Z",
            "9223372036854775807",
            "inf",
        ),
        *("x" * 300 + "…", "[1, null]", '{"k": 1}', "(cannot be shown)"),
    ]
    assert second == [
        *(None, "0x", "0001-01-01 00:00:00Z", None, "-0.1", "<b>\u202e\x00", None, "{}"),
        '["1970-01-01"]',
    ]
    about = shown.client.get(f"{API}/typed/about").json()
    assert [one["type"] for one in about["columns"]][-3:] == [
        "array<integer>",
        "map<string, integer>",
        "array<date>",
    ]


def test_a_version_is_shown_when_its_history_is(shown: Shown) -> None:
    location = a_delta_table(shown.folder / "history")
    shown.share("history", location)
    append_delta(location, some_rows())
    shown.provider.publish_delta("lake.history", location)
    assert [len(shown.preview("history", version=version)["rows"]) for version in (0, 1)] == [12, 24]
    with editing(shown.provider.catalog, "steward") as edit:
        alter_table(edit, "shown", "lake", "history", history=False)
    assert "history sharing is not enabled" in shown.preview("history", 400, version=0)["message"]
    assert shown.preview("history")["version"] == 1
    versions = shown.client.get(f"{API}/history/versions").json()
    assert [one["version"] for one in versions["versions"]] == [1]
    assert versions["versions"][0]["changes"] is None


def test_versions_come_in_pages_and_each_once(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portal, "PAGE_VERSIONS", 3)
    location = a_delta_table(shown.folder / "many", some_rows(days=1), partitioned_by=())
    shown.share("many", location)
    for _ in range(6):
        append_delta(location, some_rows(days=1))
        shown.provider.publish_delta("lake.many", location)
    found: list[int] = []
    asked: dict[str, int] = {}
    while True:
        page = shown.client.get(f"{API}/many/versions", params=asked).json()
        assert {one["changes"]["rows"] for one in page["versions"]} == {4}
        found += [one["version"] for one in page["versions"]]
        if page["before"] is None:
            break
        asked = {"before": page["before"]}
    assert found == list(range(6, -1, -1))
    assert shown.client.get(f"{API}/many/versions", params={"before": 0}).json()["versions"] == []
    assert shown.client.get(f"{API}/many/versions", params={"before": "x"}).status_code == 400


@pytest.mark.parametrize("limit", ["0", "-1", "501", "x", "1.5", ""])
def test_a_limit_that_cannot_be_used_is_named(shown: Shown, limit: str) -> None:
    told = shown.preview("inline", 400, limit=limit)
    assert told["errorCode"] == "INVALID_PARAMETER_VALUE"
    assert "limit" in told["message"]


def test_the_state_of_the_token_is_told_with_its_end(shown: Shown) -> None:
    now = datetime.now(UTC)

    def status(token: str) -> tuple[str, str]:
        answer = shown.client.get("/portal/api/status", headers={"Authorization": f"Bearer {token}"}).json()
        assert answer["recipient"] == "holder"
        return answer["state"], answer["message"]

    with editing(shown.provider.catalog, "steward") as edit:
        create_recipient(edit, "holder")
        first = issue_token(edit, "holder").secret
    assert status(first) == ("valid", "The token works until further notice")
    with editing(shown.provider.catalog, "steward") as edit:
        soon = issue_token(edit, "holder", expires_at=now + timedelta(days=2)).secret
        later = issue_token(edit, "holder", expires_at=now + timedelta(days=20)).secret
    assert [status(token)[0] for token in (soon, later)] == ["ends soon", "valid"]
    assert status(later)[1] == f"The token works until {now + timedelta(days=20):%Y-%m-%d %H:%M} UTC"
    with editing(shown.provider.catalog, "steward") as edit:
        rotate_token(edit, "holder", keep_old_for=timedelta(days=1))
    assert status(first)[0] == "replaced"
    assert status(first)[1].startswith("There is a newer token; this one works until ")


def test_a_file_that_is_gone_or_broken_is_told_without_its_place(shown: Shown) -> None:
    log = shown.table("gone", NUMBERS, schema=IDS)
    (log.location / "one.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    assert "table files missing" in shown.preview("gone", 400)["message"]
    (log.location / "one.parquet").unlink()
    assert str(shown.folder) not in shown.preview("gone", 404)["message"]


@pytest.mark.parametrize("own", ["lakeshare.db", "signing.key"])
def test_the_servers_own_files_are_nobodys_rows(shown: Shown, own: str) -> None:
    """Whoever writes a table's log can name any file of the disk in it."""
    state = shown.provider.settings.state_dir
    log = WrittenLog(state / f"table-{own}")
    vector = {"storageType": "p", "pathOrInlineDv": (state / own).as_uri(), **stored([[1]])[1][0]}
    pq.write_table(NUMBERS, log.location / "one.parquet")
    named = add((state / own).as_uri(), partitionValues={}, stats=None)
    log.commit(protocol(features=FEATURES), metadata({}, partitions=(), schema=IDS), named)
    shown.share(f"stolen-{own.partition('.')[0]}", log.location)
    assert "does not exist" in shown.preview(f"stolen-{own.partition('.')[0]}", 404)["message"]
    by_vector = WrittenLog(state / f"by-vector-{own}")
    pq.write_table(NUMBERS, by_vector.location / "one.parquet")
    told = add("one.parquet", partitionValues={}, stats=None, deletionVector=vector)
    by_vector.commit(protocol(features=FEATURES), metadata({}, partitions=(), schema=IDS), told)
    shown.share(f"vector-{own.partition('.')[0]}", by_vector.location)
    assert "does not exist" in shown.preview(f"vector-{own.partition('.')[0]}", 404)["message"]
