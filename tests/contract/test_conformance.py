"""Our own server passes the conformance suite, and nothing of it is left untried; a naive server fails with reasons.

Ours serves the tables that the model server has, and an Iceberg table; the suite sees it over HTTP alone.
"""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deltalake import write_deltalake

from lakeshare_server.catalog import FollowedTables, SharedTable
from lakeshare_server.cli import main
from tests.builders.fewer_predicates import ask_fewer_predicates
from tests.builders.lake_tables import IcebergTable, a_delta_table, some_rows
from tests.builders.sharing import Provider, a_server
from tests.fakes.model_on_disk import ModelRecipients, profile_file, share_model_tables
from tests.fakes.model_tables import the_tables


@pytest.fixture
def profiles(provider: Provider, tmp_path: Path) -> ModelRecipients:
    """The recipients of the model's tables, and an Iceberg table beside them."""
    flights = IcebergTable(tmp_path / "warehouse", some_rows().schema)
    for days in (1, 2):
        provider.publish_iceberg("lake.flights", flights.append(some_rows(days=days)))
    return share_model_tables(provider, tmp_path, SharedTable("lake", "flights", "lake.flights"))


@pytest.mark.campaign
def test_our_server_keeps_every_promise_of_the_protocol(
    provider: Provider,
    profiles: ModelRecipients,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A sixteenth of the predicates: tests/unit/server/tables/test_pruning*.py test which files they leave, too."""
    ask_fewer_predicates(monkeypatch)
    found, junit = tmp_path / "report.json", tmp_path / "report.xml"
    with a_server(provider) as server:
        bob, foreign, expired = (
            profile_file(tmp_path / f"{number}.share", server.url, token)
            for number, token in enumerate((profiles.token, profiles.foreign_token, profiles.expired_token))
        )
        arguments = ["conformance", "run", bob, "--foreign", foreign, "--expired", expired]
        arguments += ["--json", str(found), "--junit", str(junit)]
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


def test_a_version_without_changed_data_may_come_a_millisecond_after_another(
    provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where commits have one time, Delta adds a millisecond to each; windows do not show the version between."""
    location = tmp_path / "table"
    for rows in (2, 2, 0, 2):
        write_deltalake(location, some_rows().slice(0, rows), mode="append")
    commits = sorted((location / "_delta_log").glob("*.json"))
    assert len(commits) == 4
    for commit in commits:
        os.utime(commit, (1_700_000_000, 1_700_000_000))
    FollowedTables(provider.catalog).add("lake.at_once", str(location), 3600)
    provider.share("lake.at_once")
    with a_server(provider) as server:
        profile = profile_file(tmp_path / "it.share", server.url, provider.recipient())
        case = "time-travel.a-time-gives-the-version-of-that-time"
        command = ["conformance", "run", profile, "--only", case, "--json", str(tmp_path / "report.json")]
        monkeypatch.setattr("sys.argv", ["lakeshare", *command])
        with pytest.raises(SystemExit):
            main()
    [found] = json.loads((tmp_path / "report.json").read_text())["cases"]
    assert (found["verdict"], found["sentences"]) == ("passed", [])


WRONG_WITH_THE_NAIVE_SERVER = {
    "authentication.refusals-are-json": "body of the 401: expected the field errorCode",
    "listings.names-are-read-in-any-case": "GET /shares/NAIVE/schemas/DEFAULT/tables: expected status 200, came 404",
    "listings.a-share-is-returned-as-it-is-listed": "GET /shares/naive: expected status 200, came 404",
    "listing-pages.a-page-of-none-is-allowed": "GET /shares?maxResults=0: expected no items",
    "versions.a-time-that-is-none-is-400": "startingTimestamp=yesterday: expected status 400, came 200",
    "metadata.metadata-has-size-and-number-of-files": "metaData: expected the field size, came",
    "snapshots.urls-have-an-expiry": "expected expirationTimestamp",
    "time-travel.a-version-out-of-reach-is-400": '{"version": 1000}: expected status 400, came 500',
    "windows.a-window-has-adds-and-removes": "expected one of ['add', 'metaData', 'remove'], came file",
    "paging.answers-come-in-pages": '{"maxFiles": 1}: expected one file, came 3',
    "file-ids.the-scheme-of-ids-is-echoed": "expected the header fileidhash, came none",
    "predicates.json-that-makes-no-sense-gets-all-files": '"bad-predicates"}: expected an answer, came none',
    "bad-requests.fields-of-other-types-are-400": '{"version": "x"}: expected status 400, came 500',
    "data-files.a-range-is-206": "expected an answer, came none (ConnectError",
}


def test_the_naive_server_fails_with_sentences_that_say_why(tmp_path: Path) -> None:
    """The server that the benchmark sets beside ours: most of what it lacks shows, each time with the request."""
    with a_naive_server(a_delta_table(tmp_path / "table")) as url:
        fields = {"shareCredentialsVersion": 1, "endpoint": url, "bearerToken": "naive"}
        (tmp_path / "naive.share").write_text(json.dumps(fields))
        command = [
            sys.executable,
            "-m",
            "lakeshare_server",
            "conformance",
            "run",
            str(tmp_path / "naive.share"),
        ]
        ended = subprocess.run(
            [*command, "--json", str(tmp_path / "report.json")], check=False, capture_output=True
        )
    report = json.loads((tmp_path / "report.json").read_text())
    assert (ended.returncode, report["failed"], report["tables"]) == (1, True, ["naive.default.table"])
    sentences = {case["name"]: case["sentences"] for case in report["cases"] if case["verdict"] == "failed"}
    for name, said in WRONG_WITH_THE_NAIVE_SERVER.items():
        assert any(said in sentence for sentence in sentences[name]), sentences[name]
    assert not any("can be judged" in sentence for found in sentences.values() for sentence in found)
    assert report["counts"]["must"]["passed"] > 30


@contextmanager
def a_naive_server(location: Path) -> Iterator[str]:
    """The benchmark's naive server; the URLs it signs lead to a port of this host where nobody is."""
    command = [sys.executable, "-m", "bench.naive_server", "--port", "0", "--table", str(location)]
    environment = {**os.environ, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[1]
        finally:
            process.terminate()
