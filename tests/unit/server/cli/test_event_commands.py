"""`lakeshare audit` and `lakeshare usage`: what they show, what they write, and how they end."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from lakeshare_server.catalog import AuditLog, Catalog, audit
from lakeshare_server.cli import admin
from lakeshare_server.cli.main import commands
from lakeshare_server.errors import BadRequest
from tests.builders.database_schema import open_migrated
from tests.builders.events import an_event, append, tamper

NOW = datetime.now(UTC)
ORDERS = "sales.lake.orders"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    catalog = open_migrated(f"sqlite:///{folder / 'lakeshare.db'}")
    day = timedelta(days=1)
    append(
        catalog,
        [
            an_event(0, at=NOW - 40 * day, recipient="old"),
            an_event(1, at=NOW - 2 * day, size_bytes=10),
            an_event(2, at=NOW - day, recipient="eve", version=2, size_bytes=20),
            an_event(3, at=NOW, status=404, error_code="RESOURCE_DOES_NOT_EXIST", object_name="sales.lake.x_"),
            an_event(4, at=NOW, action="get_share", object_name="sales", version=None, files=None),
            an_event(5, at=NOW, kind="change", recipient=None, principal="ann", action="create_share",
                     object_name="salesmen", details={"before": None, "after": {"name": "salesmen"}}),
        ],
    )  # fmt: skip
    catalog.close()
    return folder


@pytest.fixture
def run(state: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(state))
    monkeypatch.chdir(tmp_path)

    def ran(*arguments: str, code: int = 0) -> str:
        result = CliRunner().invoke(commands, arguments)
        if isinstance(result.exception, BadRequest):
            raise result.exception
        assert result.exit_code == code, result.output
        return result.output

    return ran


def numbers(output: str) -> list[int]:
    return [int(line.split("\t")[0]) for line in output.splitlines()]


def test_tail_shows_the_newest_in_their_order(run: Any) -> None:
    assert numbers(run("audit", "tail", "-n", "2")) == [5, 6]
    line = run("audit", "tail", "-n", "1", "--recipient", "eve").rstrip("\n")
    assert line.split("\t")[2:] == [
        "eve",
        "::1",
        "query_table",
        ORDERS,
        "200",
        "version 2 2 files 20 bytes",
        "r2",
    ]
    assert "\tann\t" in run("audit", "tail", "--principal", "ann")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_tail_follows_with_each_new_event_once(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: tuple[str, ...]
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path))
    catalog = open_migrated(f"sqlite:///{tmp_path / 'lakeshare.db'}")
    append(catalog, [an_event(0)])
    newest_event_number, waits = audit.newest_event_number, iter(range(3))

    def newest(own: Catalog) -> int:
        number = newest_event_number(own)
        # Another process writes one more before the command reads up to this number.
        append(catalog, [an_event(number)])
        return number

    def wait(_: float) -> None:
        if next(waits, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(audit, "newest_event_number", newest)
    # The module's own: a thread of py4j that another test left sleeps too.
    monkeypatch.setattr(admin, "time", SimpleNamespace(sleep=wait))
    output = run("audit", "tail", "-f", "-n", "5", *form, code=130)
    catalog.close()
    shown = [json.loads(line)["number"] for line in output.splitlines() if line] if form else numbers(output)
    assert shown == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--recipient", "bob"], [2, 4, 5]),
        (["--refused"], [4]),
        (["--object", "sales"], [1, 2, 3, 4, 5]),
        (["--object", "salesmen"], [6]),
        (["--object", "sales.lake.x"], []),
        (["--object", "sales.lake.x_"], [4]),
        (["--object", "%"], []),
        (["--action", "get_share"], [5]),
        (["--request", "r2"], [3]),
        (["--ip", "::1", "--limit", "1"], [6]),
        (["--ip", "::2"], []),
        (["--since", "36h"], [3, 4, 5, 6]),
        (["--since", "3d", "--until", "36h"], [2]),
        (["--since", "1999-01-01", "--until", "1999-01-02T00:00Z"], []),
    ],
)
def test_search_finds_what_is_asked_for(run: Any, arguments: list[str], found: list[int]) -> None:
    assert numbers(run("audit", "search", *arguments)) == found


def test_an_export_holds_every_event_with_its_hash(run: Any, tmp_path: Path) -> None:
    assert run("audit", "export", "all.jsonl") == "6 events are in all.jsonl\n"
    run("audit", "export", "all.parquet")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["previous_hash"] for line in lines][1:] == [line["hash"] for line in lines][:-1]
    rows = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert [row["hash"] for row in rows] == [line["hash"] for line in lines]
    assert (
        json.loads(rows[5]["details"])
        == lines[5]["details"]
        == {"before": None, "after": {"name": "salesmen"}}
    )
    assert rows[1]["at"] == datetime.fromisoformat(lines[1]["at"])
    run("audit", "export", "eve.jsonl", "--recipient", "eve")
    assert len((tmp_path / "eve.jsonl").read_text().splitlines()) == 1
    with pytest.raises(BadRequest, match="there already"):
        run("audit", "export", "all.jsonl")
    with pytest.raises(BadRequest, match=r"\.parquet"):
        run("audit", "export", "all.xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl", "all.parquet", "eve.jsonl"]


def test_usage_is_told_in_three_shapes(run: Any) -> None:
    text = run("usage", "--by", "recipient").splitlines()
    assert text[0].split("\t") == [
        "RECIPIENT", "REQUESTS", "QUERIES", "FILES", "SIZE_BYTES", "REFUSED", "VERSIONS",
    ]  # fmt: skip
    assert [line.split("\t") for line in text[1:]] == [
        ["bob", "2", "1", "4", "10", "1", "1"],
        ["eve", "1", "1", "2", "20", "0", "1"],
    ]
    told = json.loads(run("usage", "--table", ORDERS, "--by", "version", "--by", "day", "--as", "json"))
    assert [(one["version"], one["day"]) for one in told] == [
        (1, (NOW - timedelta(days=2)).date().isoformat()),
        (2, (NOW - timedelta(days=1)).date().isoformat()),
    ]
    # The day may have ended since the event of yesterday was written: it is of one of three days, never of today.
    head = "recipient,table,requests,queries,files,size_bytes,refused,versions"
    of_eve = ("usage", "--recipient", "eve", "--as", "csv", "--days")
    assert run(*of_eve, "3").splitlines() == [head, f"eve,{ORDERS},1,1,2,20,0,1"]
    assert run(*of_eve, "1").splitlines() == [head]
    with pytest.raises(BadRequest, match="recipient, table, version"):
        run("usage", "--by", "phase")


def test_verify_ends_with_one_when_something_was_changed(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = run("audit", "verify").splitlines()
    assert said[0] == "6 events, none removed, changed or moved"
    receipt = said[1].removeprefix("receipt: ")
    assert run("audit", "verify", "--receipt", receipt).splitlines() == said
    own = a_log(tmp_path / "own", 3)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "own"))
    tamper(own, "UPDATE audit_log SET recipient = 'eve' WHERE key = 2")
    assert "changed\tevent 2 is not what it was" in run("audit", "verify", code=1)


def test_prune_asks_for_the_days_that_are_kept(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "own"))
    a_log(tmp_path / "own", 3)
    with pytest.raises(BadRequest, match="LAKESHARE_AUDIT_RETENTION_DAYS"):
        run("audit", "prune")
    assert run("audit", "prune", "--days", "36500").startswith("0 events")
    monkeypatch.setenv("LAKESHARE_AUDIT_RETENTION_DAYS", "1")
    assert run("audit", "prune") == "3 events of more than 1 days ago are removed\n"
    assert numbers(run("audit", "tail")) == [4]
    assert run("audit", "verify").startswith("1 events, none removed")


def test_what_an_ended_server_left_in_its_journal_is_told(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = a_log(tmp_path / "own", 1)
    log = AuditLog(own, tmp_path / "own" / "audit")
    tamper(own, "ALTER TABLE audit_log RENAME TO elsewhere")
    log.record(an_event(7))
    log.close()
    tamper(own, "ALTER TABLE elsewhere RENAME TO audit_log")
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "own"))
    assert numbers(run("audit", "tail")) == [1, 2]


def a_log(folder: Path, events: int) -> Catalog:
    """A log of its own, of events of years ago."""
    catalog = open_migrated(f"sqlite:///{folder / 'lakeshare.db'}")
    append(catalog, [an_event(number, at=NOW - timedelta(days=900)) for number in range(events)])
    return catalog
