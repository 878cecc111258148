"""Our own server passes the conformance suite: no case fails, and none lacks something to try it on.

It serves the tables that the model server has, and Iceberg tables; the suite sees it over HTTP alone.
"""

import json
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakeshare_server.access.profile import write_profile
from lakeshare_server.catalog import DeclaredShare, SharedTable, apply_shares
from lakeshare_server.commands import main
from tests.builders.lake_tables import IcebergTable, some_rows
from tests.builders.sharing import Provider, a_server
from tests.fakes.model_on_disk import write_delta
from tests.fakes.model_tables import the_tables


@pytest.fixture
def profile(provider: Provider, tmp_path: Path) -> Path:
    """A profile without its endpoint: the server is not started yet."""
    shared: dict[str, list[SharedTable]] = {}
    for table in the_tables():
        name = f"{table.schema}.{table.name}"
        provider.follow(name, write_delta(table, tmp_path / table.name))
        shared.setdefault(table.share, []).append(
            SharedTable(table.schema, table.name, name, history=table.has_history)
        )
    flights = IcebergTable(tmp_path / "warehouse", some_rows().schema)
    for days in (1, 2):
        provider.publish_iceberg("lake.flights", flights.append(some_rows(days=days)))
    shared["alpha"].append(SharedTable("lake", "flights", "lake.flights"))
    apply_shares(provider.catalog, [DeclaredShare(name, tuple(tables)) for name, tables in shared.items()])
    path = tmp_path / "bob.share"
    path.write_text(provider.recipient(shares=tuple(shared)))
    return path


def test_our_server_keeps_every_promise_of_the_protocol(
    provider: Provider,
    profile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, junit = tmp_path / "report.json", tmp_path / "report.xml"
    with a_server(provider) as server:
        write_profile(profile, server.url, profile.read_text(), datetime.now(UTC) + timedelta(days=1))
        arguments = ["conformance", "run", str(profile), "--json", str(found), "--junit", str(junit)]
        monkeypatch.setattr("sys.argv", ["lakeshare", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    report = json.loads(found.read_text())
    others = [
        (case["name"], case["sentences"], case["reason"])
        for case in report["cases"]
        if case["verdict"] != "passed"
    ]
    assert others == []
    assert ended.value.code == 0
    assert len(report["tables"]) == len(the_tables()) + 1
    assert "passed: every must that applies holds" in capsys.readouterr().out
    assert len(ET.parse(junit).getroot().findall(".//testcase")) == len(report["cases"])
