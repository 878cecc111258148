"""The 35 defects of a sharing server for both formats (peers-and-governance §3.4): each is shown not to be ours.

Most are looked for on one running server with two recipients, two shares, and tables of both formats. What other tests
show better is named in `HELD`.
"""

import ast
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeshare_server.app import _config, create_app
from lakeshare_server.catalog import Catalog, open_catalog, states
from lakeshare_server.catalog.credentials import rotate_token
from lakeshare_server.catalog.sharing import add_table, alter_recipient, create_share, editing
from lakeshare_server.catalog.states import SharedTable
from lakeshare_server.errors import BadRequest
from lakeshare_server.locations import parse_location
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import load_key
from tests.builders import plain_http
from tests.builders.database_schema import open_migrated
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, some_rows
from tests.builders.recipients import Recipients
from tests.builders.sharing import Provider, Running, a_provider, a_server, files, lines

TESTS = Path(__file__).parents[1]
COMMITS = 25
PARQUET_MEDIA = "application/x-ndjson"

HELD: dict[int, tuple[str, ...]] = {
    1: ("security/test_admin_roles.py::no_call_is_open_without_a_key",),
    3: ("security/test_parameter_swap.py",),
    8: ("unit/server/storage/test_signing_gcs.py::urls_are_those_of_google",),
    16: ("integration/test_iceberg_matrix.py::clients_read_what_spark_reads_or_are_refused_with_the_code",),
    17: ("integration/test_iceberg_matrix.py::each_version_has_the_columns_of_its_snapshot",),
    19: ("unit/server/tables/test_index_iceberg.py::types_that_delta_cannot_say_are_refused_by_column",),
    27: ("contract/test_conformance.py::our_server_keeps_every_promise_of_the_protocol",),
    35: ("e2e/browser/test_pages.py::a_profile_opens_what_its_recipient_may_read",),
    33: ("unit/server/storage/test_signing_sessions.py::keys_that_have_ended_sign_nothing",),
}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    folder = tmp_path_factory.mktemp("defects")
    made = a_provider(folder)
    made.publish_iceberg("lake.ice", an_iceberg_table(folder / "warehouse").state())
    delta = folder / "delta"
    for number in range(COMMITS):
        write_deltalake(delta, one_row(number), mode="append")
        if number == COMMITS - 10:
            DeltaTable(delta).create_checkpoint()
    DeltaTable(delta).delete("n < 5")
    made.publish_delta("lake.delta", delta, 3)
    made.publish_delta("lake.delta", delta)
    made.publish_delta("lake.secret", a_delta_table(folder / "secret"))
    with editing(made.catalog, "ann") as edit:
        for share, tables in {"open": ("ice", "delta"), "closed": ("secret",)}.items():
            create_share(edit, share, comment=f"of {share}")
            for name in tables:
                add_table(edit, share, SharedTable(schema="lake", name=name, table=f"lake.{name}"))
    return made


@pytest.fixture(scope="module")
def bob(provider: Provider) -> str:
    return provider.recipient("bob", ("open",))


@pytest.fixture(scope="module")
def eve(provider: Provider) -> str:
    return provider.recipient("eve", ("closed",))


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running, bob: str) -> Iterator[httpx.Client]:
    with server.client(bob) as opened:
        yield opened


@pytest.fixture
def catalog_of_one(tmp_path: Path) -> Iterator[Catalog]:
    opened = open_migrated(f"sqlite:///{tmp_path / 'lakeshare.db'}")
    yield opened
    opened.close()


def one_row(number: int) -> pa.Table:
    return pa.table({"n": pa.array([number], pa.int64()), "text": pa.array([f"row {number}"])})


def table(name: str, share: str = "open", schema: str = "lake") -> str:
    return f"/shares/{share}/schemas/{schema}/tables/{name}"


def query(client: httpx.Client, name: str, **fields: Any) -> httpx.Response:
    return client.post(f"{table(name)}/query", json=fields)


def rows_of(answer: httpx.Response) -> list[int]:
    """The numbers in the files of an answer."""
    found: list[int] = []
    for file in files(answer):
        found += pq.read_table(pa.BufferReader(plain_http.get(file["url"]).content)).column("n").to_pylist()
    return sorted(found)


@pytest.mark.parametrize("number", HELD)
def test_what_other_tests_show_is_shown(number: int) -> None:
    for held_by in HELD[number]:
        file, _, name = held_by.partition("::")
        module = ast.parse((TESTS / file).read_text())
        tests = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
        assert any(one.startswith(f"test_{name}") for one in tests), held_by


def test_every_number_has_a_test() -> None:
    module = ast.parse(Path(__file__).read_text())
    numbers = {
        int(number)
        for node in module.body
        if isinstance(node, ast.FunctionDef)
        for number in re.findall(r"(?<=_)\d+(?=_)", node.name)
    }
    assert numbers | HELD.keys() == set(range(1, 36))


# Security


def test_2_a_recipient_administers_nothing(server: Running, bob: str) -> None:
    root = server.url.removesuffix("/delta-sharing")
    with httpx.Client(
        verify=False, base_url=f"{root}/api/2.1/unity-catalog", headers={"Authorization": f"Bearer {bob}"}
    ) as admin:
        for path in ("/shares", "/recipients", "/shares/open/permissions"):
            assert admin.get(path).status_code == 401
        for path, body in (("/recipients", {"name": "mallory"}), ("/recipients/eve/rotate-token", {})):
            assert admin.post(path, json=body).status_code == 401
        assert admin.patch("/shares/closed/permissions", json={"changes": []}).status_code == 401


def test_3_4_a_grant_on_one_share_opens_no_other(server: Running, bob: str, eve: str) -> None:
    shares = {"open": bob, "closed": eve}
    for share, token in shares.items():
        with server.client(token) as reader:
            assert [one["name"] for one in reader.get("/shares").json()["items"]] == [share]
    with server.client(eve) as reader:
        assert reader.get("/shares/open").status_code == 404
        assert query(reader, "delta").status_code == 404
        assert reader.get(f"{table('secret', 'closed')}/metadata").status_code == 200


def test_5_names_are_looked_for_below_their_parents(client: httpx.Client) -> None:
    for path in (
        table("secret"),
        table("delta", "closed"),
        table("delta", schema="other"),
        table("ice", "nothing"),
    ):
        assert client.get(f"{path}/version").status_code == 404
        assert client.get(f"{path}/metadata").status_code == 404


def test_6_the_signing_key_is_made_by_each_installation_and_is_nobodys_default(tmp_path: Path) -> None:
    keys = [load_key(ServerSettings(state_dir=tmp_path / name)) for name in ("one", "two")]
    assert keys[0] != keys[1]
    assert all(len(key) >= 32 for key in keys)
    with pytest.raises(BadRequest, match="32 bytes"):
        load_key(ServerSettings(state_dir=tmp_path / "three", signing_key="secret"))


def test_7_10_revocation_holds_for_good_and_at_once(provider: Provider, server: Running) -> None:
    token = provider.recipient("leaver", ("open",))
    with server.client(token) as reader:
        assert reader.get("/shares").status_code == 200
        Recipients(provider.catalog).revoke("leaver")
        assert reader.get("/shares").status_code == 401
    opened = open_catalog(provider.settings.catalog_url)
    with opened.reading() as session:
        assert states.get_recipient(session, "leaver").state == "revoked"
    opened.close()


def test_9_urls_live_shorter_than_tokens_and_stand_in_no_log(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("DEBUG", logger="lakeshare_server"):
        [*_, last] = files(query(client, "delta"))
    left = datetime.fromtimestamp(last["expirationTimestamp"] / 1000, UTC) - datetime.now(UTC)
    assert timedelta(0) < left <= timedelta(hours=1)
    signature = last["url"].rpartition("X-Amz-Signature=")[2][:20]
    assert signature not in caplog.text + "".join(capfd.readouterr())


# Correctness


def test_11_30_one_server_answers_for_both_formats_at_once(client: httpx.Client) -> None:
    def ids(name: str) -> tuple[str, str]:
        head = lines(query(client, name))[1]["metaData"]
        return name, head["id"]

    names = ["ice", "delta"] * 20
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ids, names))
    assert len(found) == 2


def test_12_13_14_removed_files_checkpoints_and_long_logs_are_read_right(client: httpx.Client) -> None:
    assert rows_of(query(client, "delta")) == list(range(5, COMMITS))
    assert rows_of(query(client, "delta", version=3)) == [0, 1, 2, 3]


def test_15_every_file_has_an_id_of_its_own_that_stays(client: httpx.Client) -> None:
    first, again = ([file["id"] for file in files(query(client, "delta"))] for _ in range(2))
    assert len(set(first)) == len(first) == COMMITS - 5
    assert first == again


def test_17_18_20_21_22_an_iceberg_table_is_told_as_it_is(client: httpx.Client) -> None:
    answer = lines(query(client, "ice"))
    schema = json.loads(answer[1]["metaData"]["schemaString"])
    assert {field["name"]: field["nullable"] for field in schema["fields"]} == dict.fromkeys(
        some_rows().column_names, True
    )
    assert answer[1]["metaData"]["partitionColumns"] == ["day"]
    for file in (line["file"] for line in answer[2:]):
        content = plain_http.get(file["url"]).content
        assert file["size"] == len(content)
        assert re.fullmatch(r"2013-01-0\d", file["partitionValues"]["day"])
        told = json.loads(file["stats"])
        distances = pq.read_table(pa.BufferReader(content)).column("distance").to_pylist()
        assert (told["minValues"]["distance"], told["maxValues"]["distance"]) == (
            min(distances),
            max(distances),
        )


def test_23_get_share_tells_of_the_share_that_was_asked_for(provider: Provider, server: Running) -> None:
    token = provider.recipient("both", ("open", "closed"))
    with server.client(token) as reader:
        for share in ("open", "closed"):
            told = reader.get(f"/shares/{share}").json()["share"]
            assert (told["name"], told["comment"]) == (share, f"of {share}")


# Protocol


def test_24_listings_page_by_the_protocols_names(client: httpx.Client) -> None:
    first = client.get("/shares/open/all-tables", params={"maxResults": 1}).json()
    second = client.get(
        "/shares/open/all-tables", params={"maxResults": 1, "pageToken": first["nextPageToken"]}
    ).json()
    assert [one["name"] for one in first["items"] + second["items"]] == ["ice", "delta"]
    assert client.get("/shares/open/all-tables", params={"maxResults": 0}).status_code == 200


def test_25_version_by_get_and_head_and_names_in_any_case(client: httpx.Client) -> None:
    for path in (table("delta"), table("DELTA", "OPEN", "Lake")):
        for method in ("GET", "HEAD"):
            suffix = "/version" if method == "GET" else ""
            answer = client.request(method, f"{path}{suffix}")
            assert (answer.status_code, answer.headers["delta-table-version"]) == (200, str(COMMITS))


def test_26_statistics_are_text_and_the_protocol_line_is_for_readers(client: httpx.Client) -> None:
    answer = query(client, "delta")
    head, _, *rest = lines(answer)
    assert head == {"protocol": {"minReaderVersion": 1}}
    assert all(isinstance(line["file"]["stats"], str) for line in rest)
    assert answer.headers["content-type"].startswith(PARQUET_MEDIA)


def test_28_errors_have_words_and_old_versions_their_own_number(client: httpx.Client) -> None:
    wrong = query(client, "delta", version=999)
    assert wrong.status_code == 400
    assert isinstance(wrong.json()["errorCode"], str)
    assert query(client, "delta", version=3).headers["delta-table-version"] == "3"
    assert client.get(f"{table('nothing')}/metadata").status_code == 404


def test_29_versions_of_iceberg_tables_count_from_zero(client: httpx.Client) -> None:
    assert client.get(f"{table('ice')}/version").headers["delta-table-version"] == "0"


# Operation


def test_31_what_serves_does_not_reload_its_code_and_is_pinned(provider: Provider) -> None:
    assert not _config(create_app(provider.settings)).should_reload
    lock = (TESTS.parent / "requirements.lock").read_text()
    pinned = re.findall(r"^[a-z0-9][^\s=]*==\S+", lock, re.MULTILINE)
    assert len(pinned) > 100
    assert lock.count("--hash=sha256:") >= len(pinned)


def test_32_the_end_of_a_token_is_set_again_and_again_and_unset_is_without_end(provider: Provider) -> None:
    token = provider.recipient("changing", ("open",))
    found = Recipients(provider.catalog).by_token(token)
    assert found is not None
    assert found.expires_at is None
    for days in (1, 2, 3):
        end = datetime.now(UTC) + timedelta(days=days)
        with editing(provider.catalog, "ann") as edit:
            assert rotate_token(edit, "changing", expires_at=end).state.expires_at == end
            alter_recipient(edit, "changing", expires_at=end)


def test_33_a_place_of_no_store_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="ftp"):
        parse_location("ftp://host/table")


# Use


def test_34_tables_are_added_to_a_share_and_bad_names_are_refused_aloud(catalog_of_one: Catalog) -> None:
    with editing(catalog_of_one, "ann") as edit:
        create_share(edit, "s")
        for name in ("first", "second"):
            add_table(edit, "s", SharedTable(schema="a", name=name, table=f"lake.{name}"))
        assert [one.name for one in states.list_objects(edit.session, "s")] == ["first", "second"]
        with pytest.raises(BadRequest, match=r"'a name'.*no space"):
            add_table(edit, "s", SharedTable(schema="a", name="a name", table="lake.x"))
