"""`lakeshare apply` follows tables: they are read before its transaction, which applies all of the files or nothing."""

import json
import shutil
from pathlib import Path
from threading import Barrier

import pytest

from lakeshare_server.catalog import FollowedTables, open_catalog
from lakeshare_server.catalog.listings import list_all_shared_tables
from lakeshare_server.catalog.sharing import alter_share, create_share, editing
from lakeshare_server.provider import following
from lakeshare_server.settings import ServerSettings
from tests.builders.commands import Runner, a_state_folder
from tests.builders.database_schema import open_migrated
from tests.builders.followed_iceberg import OwnedTable
from tests.builders.held_requests import silent_service
from tests.builders.lake_tables import a_delta_table, some_rows

LOG = "_delta_log/00000000000000000000.json"
SERVED = "served to python-parquet, python-delta, spark"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    a_state_folder(tmp_path, monkeypatch)
    return Runner(monkeypatch, capsys)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder with four Delta tables, `t0` to `t3`, partitioned by day."""
    made = a_delta_table(tmp_path / "sales" / "t0")
    for number in range(1, 4):
        shutil.copytree(made, made.with_name(f"t{number}"))
    return made.parent


def write(text: str, name: str = "shares.yaml") -> None:
    Path(name).write_text(text)


def followed() -> dict[str, tuple[str, float, int]]:
    catalog = open_migrated(ServerSettings().catalog_url)
    return {
        one.table: (Path(one.location).name, one.check_every_s, one.start_version)
        for one in FollowedTables(catalog).list()
    }


def shared() -> list[str]:
    return sorted(entry.path for entry in list_all_shared_tables(open_catalog(ServerSettings().catalog_url)))


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a table was read")

    monkeypatch.setattr(following, "read_unfollowed", refuse)


def test_tables_are_followed_and_shared_once(
    run: Runner, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg = OwnedTable(tmp_path / "warehouse")
    write(f"""
followed:
  sales.orders: {lake}/t0
  sales.items: {{location: {iceberg.folder}, check_every_s: 60, start_version: 0}}
shares:
  partners:
    tables: {{sales.orders: , eu.items: sales.items}}
""")
    planned = run.ended("apply", "-f", "shares.yaml", "--plan")
    assert planned.code == 2, planned.errors
    lines = planned.output.splitlines()
    assert lines[0] == f"  + followed sales.orders  # {SERVED}"
    assert lines[1] == f'      + location: "{lake}/t0"'
    assert lines[2].startswith("  + followed sales.items  # served to ")
    assert lines[4] == "      + check_every_s: 60.0"
    assert lines[-1].endswith(": 5 to add, 0 to change, 0 to remove.")
    assert (followed(), shared()) == ({}, []), "a plan writes nothing"
    digest = json.loads(run.ended("apply", "-f", "shares.yaml", "--plan", "--json").output)["digest"]
    told = json.loads(run("apply", "-f", "shares.yaml", "--expect", digest, "--json"))
    [orders, _] = [change for change in told["changes"] if change["kind"] == "followed"]
    assert (orders["name"], orders["remark"], orders["line"]) == ("sales.orders", SERVED, 3)
    assert followed() == {"sales.orders": ("t0", 10.0, 0), "sales.items": (iceberg.folder.name, 60.0, 0)}
    assert shared() == ["partners.eu.items", "partners.sales.orders"]
    assert "version\t0" in run("table", "show", "partners.eu.items")
    forbid_reading(monkeypatch)
    for arguments in (["apply", "--plan"], ["apply", "--yes"], ["diff"]):
        assert run(*arguments, "-f", "shares.yaml").startswith("No changes"), arguments


def test_a_star_follows_and_shares_the_tables_of_a_folder(run: Runner, lake: Path) -> None:
    write(f"""
followed:
  all.*: {{location: '{lake}/*', check_every_s: 60, exclude: [t3]}}
  all.first: {lake}/t0
  own.t2: {lake}/t2
shares:
  partners:
    tables: {{all.*: {{history: false}}, all.t1: {{comment: Best}}, eu.*: own.*}}
""")
    run("apply", "-f", "shares.yaml", "--yes")
    assert followed() == {"all.first": ("t0", 10.0, 0), "own.t2": ("t2", 10.0, 0), "all.t1": ("t1", 60.0, 0)}
    entries = list_all_shared_tables(open_catalog(ServerSettings().catalog_url))
    assert {entry.path: (entry.table, entry.history, entry.comment) for entry in entries} == {
        "partners.all.first": ("all.first", False, None),
        "partners.all.t1": ("all.t1", True, "Best"),
        "partners.eu.t2": ("own.t2", True, None),
    }
    assert run("apply", "-f", "shares.yaml", "--plan").startswith("No changes")
    shutil.copytree(lake / "t1", lake / "t9")
    ended = run.ended("diff", "-f", "shares.yaml")
    assert ended.code == 2
    assert [line for line in ended.output.splitlines() if line.startswith("  +")] == [
        "  + followed all.t9",
        "  + table partners.all.t9",
    ]
    shutil.rmtree(lake / "t9")
    shutil.rmtree(lake / "t1")
    write(Path("shares.yaml").read_text().replace(", all.t1: {comment: Best}", ""))
    assert "  ? followed all.t1: is in no file any more" in run.ended("diff", "-f", "shares.yaml").output
    run("apply", "-f", "shares.yaml", "--prune", "--yes")
    assert (list(followed()), shared()) == (["all.first", "own.t2"], ["partners.all.first", "partners.eu.t2"])


def test_tables_that_cannot_be_followed_are_refused_by_line_and_nothing_is_changed(
    run: Runner, lake: Path, tmp_path: Path
) -> None:
    (lake / "t1" / LOG).write_text("{")
    shutil.rmtree(lake / "t2" / "_delta_log")
    write(f"""
followed:
  sales.good: {lake}/t0
  sales.cut: {lake}/t1
  sales.none: {{location: {lake}/t2}}
  git.orders: iceberg:nowhere/sales.orders
shares: {{partners: {{tables: [sales.good]}}}}
""")
    for option in ("--plan", "--yes"):
        ended = run.ended("apply", "-f", "shares.yaml", option)
        assert (ended.code, ended.output) == (1, "")
        # A location without a catalog needs no table to be read: it is refused with whatever is wrong in the file.
        assert 'shares.yaml:6: followed["git.orders"]: iceberg:nowhere/sales.orders cannot be' in ended.errors
        assert "No Iceberg catalog of this name is configured" in ended.errors
    write(Path("shares.yaml").read_text().replace("  git.orders: iceberg:nowhere/sales.orders\n", ""))
    for option in ("--plan", "--yes"):
        ended = run.ended("apply", "-f", "shares.yaml", option)
        assert (ended.code, ended.output) == (1, "")
        cut, none = ended.errors.splitlines()
        assert cut.startswith(
            f'lakeshare: shares.yaml:4: followed["sales.cut"]: {lake}/t1 cannot be followed as sales.cut: '
        )
        assert none.startswith(
            f'shares.yaml:5: followed["sales.none"]: {lake}/t2 cannot be followed as sales.none: There is no Delta'
        )
        assert "Give the folder above _delta_log or metadata" in none
        assert (followed(), shared()) == ({}, [])
    write(f"followed:\n  all.*: '{lake}/*'\n  no.*: '{tmp_path}/nothing/*'")
    ended = run.ended("apply", "-f", "shares.yaml", "--yes")
    assert f'shares.yaml:3: followed["no.*"]: {tmp_path}/nothing/* cannot be' in ended.errors
    write(f"followed:\n  all.*: '{lake}/*'")
    ended = run.ended("apply", "-f", "shares.yaml", "--yes")
    assert f'shares.yaml:2: followed["all.*"]: {lake}/t1 cannot be followed as all.t1: ' in ended.errors
    assert followed() == {}


def test_a_store_that_never_answers_is_refused_within_its_deadline(
    run: Runner, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with silent_service() as url:
        for name, value in {
            "LAKESHARE_S3_ENDPOINT": url,
            "LAKESHARE_S3_REGION": "eu-north-1",
            "LAKESHARE_OUTSIDE_ANSWER_S": "1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }.items():
            monkeypatch.setenv(name, value)
        write(f"followed:\n  sales.far: s3://bucket/far\n  sales.near: {lake}/t0\n")
        ended = run.ended("apply", "-f", "shares.yaml", "--yes")
    assert ended.code == 1
    assert 'shares.yaml:2: followed["sales.far"]: s3://bucket/far cannot be followed' in ended.errors
    assert followed() == {}


def test_tables_are_read_at_the_same_time_while_others_may_write(
    run: Runner, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, together, found_at = (
        open_catalog(ServerSettings().catalog_url),
        Barrier(4, timeout=60),
        following.read_unfollowed,
    )
    with editing(catalog, "eve") as edit:
        create_share(edit, "other")

    def meet(*arguments: object) -> object:
        if together.wait() == 0:
            # With the transaction of the files open this would wait for its end, which waits for this.
            with editing(catalog, "eve") as edit:
                alter_share(edit, "other", comment="written meanwhile")
        return found_at(*arguments)

    monkeypatch.setattr(following, "read_unfollowed", meet)
    write(f"followed: {{'all.*': '{lake}/*'}}\nshares: {{s: {{tables: ['all.*']}}}}")
    run("apply", "-f", "shares.yaml", "--yes")
    assert (len(followed()), len(shared())) == (4, 4)


def test_an_export_follows_the_same_on_an_empty_server(
    run: Runner, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("table", "follow", f"{lake}/t0", "--as", "by.hand", "--share", "partners")
    write(
        f"followed: {{all.t1: {lake}/t1, all.t2: {{location: {lake}/t2, check_every_s: 2.5, start_version: 0}}}}"
    )
    run("apply", "-f", "shares.yaml", "--yes")
    run("export", "-o", "all.yaml")
    text = Path("all.yaml").read_text()
    assert (
        f"followed:\n  all.t1: {lake}/t1\n  all.t2:\n    location: {lake}/t2\n    check_every_s: 2.5\n"
        in text
    )
    plan = run.ended("apply", "-f", "all.yaml", "--plan").output
    assert "  ~ followed by.hand\n      ~ kept_by: an edit by hand → files\n" in plan
    before = followed()
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "empty"))
    run("apply", "-f", "all.yaml", "--yes")
    assert (followed(), run("export")) == (before, text)


def test_a_rule_that_the_partitions_of_a_new_table_do_not_decide_is_refused(run: Runner, lake: Path) -> None:
    text = f"""
followed: {{sales.t0: {lake}/t0}}
shares:
  partners:
    tables:
      sales.t0: {{rule: RULE}}
"""
    column = next(name for name in some_rows().schema.names if name != "day")
    write(text.replace("RULE", f"{column} = 1"))
    for option in ("--plan", "--yes"):
        ended = run.ended("apply", "-f", "shares.yaml", option)
        assert ended.code == 1
        assert 'shares.yaml:6: shares.partners.tables["sales.t0"]: rule' in ended.errors
        assert "cannot decide it by its partitions" in ended.errors
        assert followed() == {}
    write(text.replace("RULE", "day IS NOT NULL"))
    run("apply", "-f", "shares.yaml", "--yes")
    assert shared() == ["partners.sales.t0"]


def test_a_table_that_no_known_client_can_read_is_followed_with_a_remark(run: Runner, tmp_path: Path) -> None:
    table = a_delta_table(tmp_path / "sales" / "odd")
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"")
    commit = table / LOG
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = outside.as_uri()
    commit.write_text("\n".join(json.dumps(line) for line in lines))
    write(f"followed: {{sales.odd: {table}}}")
    ended = run.ended("apply", "-f", "shares.yaml", "--plan")
    assert ended.output.startswith("  + followed sales.odd  # no known client can read it: "), ended
