"""The commands about shares, recipients and groups do what they say and show what is there."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.builders.commands import Runner, a_state_folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    a_state_folder(tmp_path, monkeypatch)
    return Runner(monkeypatch, capsys)


def test_a_share_is_made_filled_granted_shown_and_dropped(run: Runner) -> None:
    assert "partners is there" in run(
        "share", "create", "partners", "--comment", "c", "--property", "tier=gold"
    )
    assert run("share", "add", "partners", "sales.orders") == "partners.sales.orders is sales.orders\n"
    run(
        "share",
        "add",
        "partners",
        "sales.orders",
        "--as",
        "eu.orders",
        "--where",
        "region = 'EU'",
        "--no-history",
    )
    run("recipient", "add", "acme", "--share", "partners")
    run("group", "create", "retail", "--member", "acme")
    run(
        "share",
        "grant",
        "partners",
        "--group",
        "retail",
        "--until",
        "2030-01-01T00:00:00Z",
        "--where",
        "day > '2024'",
    )
    shown = run("share", "show", "PARTNERS").splitlines()
    assert "comment\tc" in shown
    assert "properties\t{'tier': 'gold'}" in shown
    assert "table\tpartners.sales.orders\tsales.orders" in shown
    assert "table\tpartners.eu.orders\tsales.orders\trule=region = 'EU', no history" in shown
    assert "grant\trecipient acme\tuntil further notice" in shown
    assert "grant\tgroup retail\tuntil 2030-01-01 00:00Z\tday > '2024'" in shown
    run("share", "change", "partners.eu.orders", "--as", "world.orders", "--where", "", "--publication", "3")
    assert "table\tpartners.world.orders\tsales.orders\tpublication=3, no history" in run(
        "share", "show", "partners"
    )
    run("share", "remove", "partners.world.orders")
    run("share", "revoke", "partners", "--recipient", "acme")
    assert "world" not in run("share", "show", "partners")
    run("share", "set", "partners", "--rename", "friends", "--comment", "")
    assert run("share", "drop", "friends", "--yes") == "friends is gone\n"
    assert run.ended("share", "show", "friends").code == 1


def test_a_recipient_is_shown_changed_and_dropped(run: Runner, tmp_path: Path) -> None:
    run("share", "create", "s")
    run("recipient", "add", "acme", "--share", "s")
    (tmp_path / "terms.txt").write_text("Do not pass it on.\n")
    assert run("recipient", "ip", "acme") == "acme may come from anywhere\n"
    run("recipient", "ip", "acme", "--allow", "10.0.0.0/8", "--allow", "192.0.2.1")
    assert run("recipient", "ip", "acme") == "acme may come from 10.0.0.0/8, 192.0.2.1/32\n"
    run("recipient", "props", "acme", "region=EU", "trial=yes")
    assert run("recipient", "props", "acme", "tier=gold", "--unset", "trial") == "region\tEU\ntier\tgold\n"
    run("recipient", "set", "acme", "--expires", "2030-01-01T00:00:00+01:00", "--agreement", "terms.txt")
    shown = run("recipient", "show", "ACME").splitlines()
    assert {
        "state\tactivated",
        "agreement\tDo not pass it on.",
        "expires_at\t2029-12-31T23:00:00+00:00",
    } <= set(shown)
    assert any(re.match(r"tokens\tid=.*kind=bearer", line) for line in shown)
    assert "may read\ts\tuntil further notice" in shown
    assert run("recipient", "ip", "acme", "--any") == "acme may come from anywhere\n"
    assert run("recipient", "drop", "acme", "--yes") == "acme is gone\n"
    assert run("recipient", "list") == ""


def test_groups_are_listed_filled_emptied_and_dropped(run: Runner) -> None:
    run("share", "create", "s")
    for name in ("acme", "globex"):
        run("recipient", "add", name, "--share", "s")
    run("group", "create", "retail", "--comment", "All shops")
    assert run("group", "add", "retail", "acme", "globex") == "retail: acme, globex\n"
    assert run("group", "list") == "retail\tacme, globex\tAll shops\n"
    assert run("group", "remove", "retail", "acme") == "retail: globex\n"
    assert run("group", "drop", "retail", "--yes") == "retail is gone\n"
    assert run("group", "list") == ""


def test_nothing_is_dropped_without_a_yes(run: Runner) -> None:
    run("share", "create", "x")
    run("recipient", "add", "x", "--share", "x")
    run("group", "create", "x")
    for command in ("share", "recipient", "group"):
        ended = run.ended(command, "drop", "x")
        assert ended.code == 1
        assert re.search(r"Drop x.*This is not a terminal: give --yes\.", ended.errors)
        assert run.answering("n", command, "drop", "x").code == 1
        assert "x is gone" in run.answering("y", command, "drop", "x").output


def test_lists_are_printed_as_json(run: Runner) -> None:
    def parsed(*arguments: str) -> Any:
        return json.loads(run(*arguments, "--json"))

    run("share", "create", "partners", "--comment", "c")
    run("share", "add", "partners", "sales.orders", "--where", "region = 'EU'")
    run("recipient", "add", "acme", "--share", "partners")
    run("group", "create", "retail", "--member", "acme")
    run("admin", "key", "add", "robot", "--role", "auditor")
    assert parsed("share", "list") == [
        {"path": "partners.sales.orders", "table": "sales.orders", "latest": None}
    ]
    share = parsed("share", "show", "partners")
    assert (share["comment"], share["tables"][0]["rule"], share["grants"][0]["recipient"]) == (
        "c",
        "region = 'EU'",
        "acme",
    )
    [recipient] = parsed("recipient", "list")
    assert parsed("recipient", "show", "acme") == recipient
    assert (recipient["state"], recipient["grants"][0]["share"]) == ("activated", "partners")
    assert parsed("group", "list")[0]["members"] == ["acme"]
    assert parsed("table", "list") == []
    [key] = [key for key in parsed("admin", "key", "list") if key["name"] == "robot"]
    assert (key["role"], datetime.fromisoformat(key["created_at"]).tzinfo is not None) == ("auditor", True)
