"""`lakeshare table follow` takes many tables: locations, a folder, a namespace, a file; one report, one exit code."""

import json
import shutil
from pathlib import Path
from threading import Barrier

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from lakeshare_server.catalog import FollowedTables, SharedTable, open_catalog, share_table
from lakeshare_server.catalog.listings import list_all_shared_tables
from lakeshare_server.catalog.sharing import alter_table, editing
from lakeshare_server.errors import BadRequest
from lakeshare_server.provider import following
from lakeshare_server.settings import ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.versions import list_tables_at, read_table_name
from tests.builders.administration import PROVIDER, an_administered_server
from tests.builders.commands import Runner, a_state_folder
from tests.builders.database_schema import open_migrated
from tests.builders.followed_iceberg import OwnedTable
from tests.builders.lake_tables import a_delta_table, some_rows

ROWS = pa.table({"id": [1]})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    a_state_folder(tmp_path, monkeypatch)
    return Runner(monkeypatch, capsys)


def tables_in(folder: Path, count: int) -> Path:
    """A folder with so many Delta tables, `t0` and so on."""
    made = a_delta_table(folder / "t0", ROWS, partitioned_by=())
    for number in range(1, count):
        shutil.copytree(made, folder / f"t{number}")
    return folder


def followed() -> dict[str, str]:
    catalog = open_migrated(ServerSettings().catalog_url)
    return {one.table: one.location for one in FollowedTables(catalog).list()}


def shared() -> list[str]:
    return sorted(entry.path for entry in list_all_shared_tables(open_catalog(ServerSettings().catalog_url)))


def test_the_tables_of_a_folder_are_followed_at_once_and_a_bad_one_stops_no_other(
    run: Runner, tmp_path: Path
) -> None:
    lake = tables_in(tmp_path / "sales", 20)
    warehouse = OwnedTable(tmp_path / "warehouse")
    shutil.move(warehouse.folder, lake / "iceberg")
    (lake / "t7" / "_delta_log" / "00000000000000000000.json").write_text("{")
    for name in ("_staging", ".hidden", "notes"):
        (lake / name).mkdir()
    shutil.copytree(lake / "t0" / "_delta_log", lake / "_staging" / "_delta_log")
    (lake / "readme.txt").write_text("no table")
    ended = run.ended("table", "follow", f"{lake}/*", "--share", "partners")
    lines = [line.split("\t") for line in ended.output.splitlines()]
    # The Iceberg table names its files where it was before.
    assert {line[1] for line in lines if line[0] == "refused"} == {
        "partners.sales.t7",
        "partners.sales.iceberg",
    }
    assert (ended.code, ended.errors.splitlines()[-1]) == (1, "19 followed, 2 refused")
    good = [f"partners.sales.t{number}" for number in range(20) if number != 7]
    assert [line[1] for line in lines if line[0] == "followed"] == sorted(good)
    assert all(
        "served to python-parquet, python-delta, spark" in line[3] for line in lines if line[0] == "followed"
    )
    assert shared() == sorted(good)
    shutil.rmtree(lake / "t7")
    shutil.rmtree(lake / "iceberg")
    again = run.ended("table", "follow", f"{lake}/*", "--share", "partners", "--check-every", "60")
    assert (again.code, again.errors.splitlines()[-1]) == (0, "19 followed")


def test_tables_are_read_at_the_same_time(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, found_at = Barrier(8, timeout=60), following.read_unfollowed

    def meet(*arguments: object) -> object:
        together.wait()
        return found_at(*arguments)

    monkeypatch.setattr(following, "read_unfollowed", meet)
    run("table", "follow", f"{tables_in(tmp_path / 'sales', 8)}/*")
    assert len(followed()) == 8


def test_many_locations_are_followed_under_the_names_they_have(run: Runner, tmp_path: Path) -> None:
    lake = tables_in(tmp_path / "sales", 2)
    other = a_delta_table(tmp_path / "stock" / "items", ROWS, partitioned_by=())
    run("table", "follow", str(lake / "t0"), str(lake / "t1"), str(other))
    assert followed() == {
        "sales.t0": str(lake / "t0"),
        "sales.t1": str(lake / "t1"),
        "stock.items": str(other),
    }
    run("table", "follow", f"{lake}/*", str(other), "--schema", "all", "--share", "other")
    assert shared() == [
        *("lake.sales.t0", "lake.sales.t1", "lake.stock.items"),
        *("other.all.items", "other.all.t0", "other.all.t1"),
    ]


def test_two_tables_of_one_name_are_refused_and_not_mixed(run: Runner, tmp_path: Path) -> None:
    one = a_delta_table(tmp_path / "a" / "sales" / "orders", ROWS, partitioned_by=())
    other = a_delta_table(tmp_path / "b" / "sales" / "orders", ROWS, partitioned_by=())
    ended = run.ended("table", "follow", str(one), str(other))
    assert (ended.code, followed()) == (1, {"sales.orders": str(one)})
    assert f"sales.orders is the name of {one} in the same request" in ended.output


def test_following_again_changes_the_check_and_keeps_the_comment(run: Runner, tmp_path: Path) -> None:
    follow = "table", "follow", str(a_delta_table(tmp_path / "one", ROWS, partitioned_by=())), "--share", "s"
    run(*follow, "--as", "sales.one")
    catalog = open_catalog(ServerSettings().catalog_url)
    with editing(catalog, "tests") as edit:
        alter_table(edit, "s", "sales", "one", comment="kept")
    run(*follow, "--as", "sales.one", "--check-every", "3")
    assert [(entry.path, entry.comment) for entry in list_all_shared_tables(catalog)] == [
        ("s.sales.one", "kept")
    ]
    assert [one.check_every_s for one in FollowedTables(catalog).list()] == [3]


def test_a_file_names_the_tables(run: Runner, tmp_path: Path) -> None:
    lake = tables_in(tmp_path / "sales", 3)
    (tmp_path / "tables.txt").write_text(f"# ours\n{lake}/t0\n\n{lake}/t1\tmarketing.first\n  {lake}/t2  \n")
    told = json.loads(run("table", "follow", "--from-file", "tables.txt", "--json"))
    assert [(one["result"], one["table"], one["version"]) for one in told] == [
        ("followed", "lake.sales.t0", 0),
        ("followed", "lake.marketing.first", 0),
        ("followed", "lake.sales.t2", 0),
    ]
    assert all(one["clients"] == ["python-parquet", "python-delta", "spark"] for one in told)


def test_the_tables_of_a_namespace_are_followed(run: Runner, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  prod:\n    type: sql\n    uri: {uri}\n")
    opened = load_catalog("prod", type="sql", uri=uri, warehouse=(tmp_path / "warehouse").as_uri())
    for namespace in ("sales", "sales.eu", "stock"):
        opened.create_namespace(namespace)
        for name in ("orders", "returns"):
            opened.create_table(f"{namespace}.{name}", some_rows().schema).append(some_rows(days=1))
    opened.engine.dispose()
    run("table", "follow", "iceberg:prod/sales.*")
    assert followed() == {f"sales.{one}": f"iceberg:prod/sales.{one}" for one in ("orders", "returns")}
    run("table", "follow", "iceberg:prod/sales.eu.*", "--share", "europe")
    assert shared()[:2] == ["europe.sales_eu.orders", "europe.sales_eu.returns"]
    ended = run.ended("table", "follow", "iceberg:prod/nothing.*")
    assert (ended.code, "nothing" in ended.errors) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Give one location or more"),
        (["a", "b", "--as", "sales.orders"], "It names a single table"),
        (["a/*", "--as", "sales.orders"], "It names a single table"),
        (["--from-file", "nowhere.txt"], "It cannot be read"),
        (["empty/*"], "There is no table in it"),
        (["nowhere/*"], "nowhere is not in its store"),
        (["iceberg:prod/*"], "Spell it iceberg:CATALOG/NAMESPACE.TABLE"),
        (["iceberg:other/sales.*"], "No Iceberg catalog of this name is configured"),
    ],
)
def test_what_names_no_tables_is_refused_with_the_remedy(
    run: Runner, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    ended = run.ended("table", "follow", *arguments)
    assert (ended.code, said in ended.errors) == (1, True), ended.errors
    assert followed() == {}


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("/lake/sales/orders", "sales.orders"),
        ("s3://bucket/orders", "bucket.orders"),
        ("s3://lake/sales/orders/metadata/v7.metadata.json", "sales.orders"),
        ("iceberg:prod/a.b.orders", "a_b.orders"),
        ("nessie:git/sales.orders@dev", "sales.orders"),
    ],
)
def test_a_table_is_named_as_its_location_has_it(location: str, name: str) -> None:
    assert read_table_name(location) == name


def test_one_location_without_a_name_is_named_by_its_place(run: Runner, tmp_path: Path) -> None:
    table = tables_in(tmp_path / "sales", 1) / "t0"
    assert f"lake.sales.t0 follows {table}, now at version 0" in run("table", "follow", str(table))


def test_a_location_without_a_star_is_one_table(tmp_path: Path) -> None:
    settings = ServerSettings(_env_file=None)
    assert list_tables_at(f"{tmp_path}/a*b", Stores(settings), settings) == [f"{tmp_path}/a*b"]
    with pytest.raises(BadRequest):
        list_tables_at("iceberg:prod/sales.*@main", Stores(settings), settings)


def test_the_admin_api_follows_lists_and_ends(tmp_path: Path) -> None:
    lake = tables_in(tmp_path / "sales", 3)
    (lake / "t2" / "_delta_log" / "00000000000000000000.json").write_text("{")
    with an_administered_server(tmp_path) as server, server.client(prefix=PROVIDER) as client:
        wanted = {"tables": [{"location": f"{lake}/*"}], "share": "partners", "check_every_s": 60}
        answer = client.post("/followed-tables", json=wanted)
        assert answer.status_code == 200, answer.text
        results = {one["table"]: one for one in answer.json()["results"]}
        assert {name: one["result"] for name, one in results.items()} == {
            "partners.sales.t0": "followed",
            "partners.sales.t1": "followed",
            "partners.sales.t2": "refused",
        }
        assert results["partners.sales.t0"]["clients"] == ["python-parquet", "python-delta", "spark"]
        named = {"tables": [{"location": str(lake / "t0"), "name": "own.name"}], "history": False}
        assert client.post("/followed-tables", json=named).json()["results"][0]["table"] == "lake.own.name"
        share_table(server.provider.catalog, "lake", SharedTable("own", "taken", "lake.orders"))
        taken = {"tables": [{"location": str(lake / "t0"), "name": "own.taken"}]}
        [refused] = client.post("/followed-tables", json=taken).json()["results"]
        assert refused["result"] == "refused"
        assert "lake.own.taken is shared already, as lake.orders" in json.dumps(refused)
        [first, *_] = listed = client.get("/followed-tables").json()["tables"]
        assert [one["table"] for one in listed] == ["own.name", "sales.t0", "sales.t1"]
        assert (first["location"], first["format"], first["check_every_s"]) == (
            str(lake / "t0"),
            "delta",
            10.0,
        )
        token = server.provider.recipient(shares=("partners",))
        read = httpx.post(
            f"{server.root}/delta-sharing/shares/partners/schemas/sales/tables/t1/query",
            headers={"Authorization": f"Bearer {token}"},
        )
        assert read.status_code == 200, read.text
        assert client.delete("/followed-tables/sales.t1").json()["table"] == "sales.t1"
        assert client.delete("/followed-tables/sales.t1").status_code == 404
        for body in ({}, {"tables": []}, {"tables": [{"location": f"{tmp_path}/nothing/*"}]}):
            assert client.post("/followed-tables", json=body).status_code in (400, 404), body


def test_statements_follow_show_and_end(run: Runner, tmp_path: Path) -> None:
    lake = tables_in(tmp_path / "sales", 2)
    run("sql", "-c", f"FOLLOW '{lake}/*' IN SHARE partners")
    run("sql", "-c", f"FOLLOW '{lake}/t0' AS own.name WITHOUT HISTORY")
    assert shared() == ["lake.own.name", "partners.sales.t0", "partners.sales.t1"]
    shown = run("sql", "-c", "SHOW FOLLOWED TABLES LIKE 'sales.*'")
    assert [name in shown for name in ("own.name", "sales.t0", "sales.t1")] == [False, True, True]
    run("sql", "-c", "UNFOLLOW sales.t1")
    assert list(followed()) == ["own.name", "sales.t0"]
    (lake / "t1" / "_delta_log" / "00000000000000000000.json").write_text("{")
    ended = run.ended("sql", "-c", f"FOLLOW '{lake}/*'")
    assert ended.code != 0
    assert "1 of its 2 tables are refused, the others are followed" in ended.errors
    ended = run.ended("sql", "--single-transaction", "-c", f"FOLLOW '{lake}/t0'; UNFOLLOW own.name")
    assert (ended.code != 0, "outside of the transaction" in ended.errors) == (True, True)
    assert list(followed()) == ["own.name", "sales.t0"]
