"""The server's commands do what they say, say what they did, and refuse in a sentence."""

import json
import re
from pathlib import Path

import pytest
import typer

from lakeshare_server.catalog import (
    Credentials,
    Ledger,
    Reader,
    SharedTable,
    allow_directory_access,
    share_table,
)
from lakeshare_server.cli import add_commands
from tests.builders.commands import Runner
from tests.builders.lake_tables import a_delta_table
from tests.builders.publications import a_publication
from tests.builders.recipients import Recipients
from tests.builders.sharing import Provider, a_provider


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = a_provider(tmp_path)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
    monkeypatch.chdir(tmp_path)
    provider.publish_delta("lake.flights", a_delta_table(tmp_path / "table"))
    provider.share("lake.flights", "lake.planned")
    return provider


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(monkeypatch, capsys)


def test_adding_a_recipient_writes_the_profile_it_needs(
    provider: Provider, run: Runner, tmp_path: Path
) -> None:
    said = run("recipient", "add", "bob", "--share", "flights", "--days", "30", "--comment", "tests")
    assert "bob may read flights" in said
    profile = json.loads((tmp_path / "bob.share").read_text())
    assert profile["shareCredentialsVersion"] == 1
    assert profile["endpoint"] == provider.settings.model_copy(update={"port": 8765}).base_url()
    assert profile["expirationTime"].endswith("Z")
    [bob] = Recipients(provider.catalog).list()
    assert (bob.name, bob.comment) == ("bob", "tests")
    assert Recipients(provider.catalog).by_token(profile["bearerToken"]) == Reader(bob.id, "bob")
    assert profile["bearerToken"] not in said


def test_the_profile_goes_where_it_is_told_with_the_url_it_is_told(
    provider: Provider, tmp_path: Path, run: Runner
) -> None:
    run(
        "recipient",
        "add",
        "bob",
        "--share",
        "flights",
        "--profile",
        "x/y.share",
        "--url",
        "https://share.example/",
    )
    assert (
        json.loads((tmp_path / "x" / "y.share").read_text())["endpoint"]
        == "https://share.example/delta-sharing"
    )


def test_recipients_are_listed_rotated_and_revoked(provider: Provider, run: Runner, tmp_path: Path) -> None:
    run("recipient", "add", "bob", "--share", "flights")
    old = json.loads((tmp_path / "bob.share").read_text())["bearerToken"]
    run("recipient", "rotate", "BOB")
    new = json.loads((tmp_path / "bob.share").read_text())["bearerToken"]
    recipients = Recipients(provider.catalog)
    assert recipients.by_token(old) is None
    assert recipients.by_token(new) is not None
    assert re.search(r"bob\tflights\tuntil further notice", run("recipient", "list"))
    run("recipient", "revoke", "bob")
    assert recipients.by_token(new) is None
    assert re.search(r"bob\tflights\trevoked", run("recipient", "list"))


def test_a_recipient_gets_in_as_is_said_when_it_is_added(
    provider: Provider, run: Runner, tmp_path: Path
) -> None:
    run("recipient", "add", "client", "--share", "flights", "--by", "oauth")
    profile = json.loads((tmp_path / "client.share").read_text())
    assert (profile["shareCredentialsVersion"], profile["type"]) == (2, "oauth_client_credentials")
    assert profile["tokenEndpoint"] == profile["endpoint"] + "/oauth/token"
    known = Credentials(provider.catalog).by_client_secret(profile["clientId"], profile["clientSecret"])
    assert known is not None
    assert known.reader.name == "client"
    run("recipient", "rotate", "client")
    again = json.loads((tmp_path / "client.share").read_text())
    assert again["type"] == "oauth_client_credentials"
    assert again["clientSecret"] != profile["clientSecret"]
    issuer = ("--issuer", "https://login.acme.example", "--audience", "lakeshare", "--subject", "job-7")
    assert "may read flights" in run("recipient", "add", "acme", "--share", "flights", "--by", "oidc")
    assert not (tmp_path / "acme.share").exists()
    assert "https://login.acme.example" in run("recipient", "federate", "acme", *issuer)
    assert len(Credentials(provider.catalog).policies("https://login.acme.example")) == 1
    assert run.ended("recipient", "federate", "client", *issuer).code == 1
    assert "--drop" in run.ended("recipient", "federate", "acme", "--subject", "x").errors
    run("recipient", "federate", "acme", "--drop")
    assert Credentials(provider.catalog).policies("https://login.acme.example") == []


def test_limits_of_a_recipient_are_set_shown_and_taken_back(provider: Provider, run: Runner) -> None:
    run("recipient", "add", "bob", "--share", "flights")
    assert run("recipient", "limit", "bob").count("as the settings say") == 3
    run("recipient", "limit", "bob", "--requests-per-minute", "60", "--bytes-per-day", "1000")
    said = run("recipient", "limit", "bob", "--urls-per-day", "7")
    assert said.splitlines() == ["requests_per_minute\t60", "urls_per_day\t7", "bytes_per_day\t1000"]
    assert run.ended("recipient", "limit", "nobody").code == 1
    said = run("recipient", "limit", "bob", "--usual", "--urls-per-day", "8")
    assert "urls_per_day\t8" in said
    assert said.count("as the settings say") == 2


def test_publications_are_listed_newest_first(provider: Provider, run: Runner) -> None:
    Ledger(provider.catalog).append(
        [a_publication(format="delta", delta_version=5, rows=77, audited=False, rollback_of=0, run_id="r5")]
    )
    listed = json.loads(run("publications", "lake.flights", "--json"))
    assert [(row["number"], row["expired"]) for row in listed] == sorted(
        ((row["number"], False) for row in listed), reverse=True
    )
    head, newest, oldest = run("publications", "lake.flights").splitlines()
    assert head.split("\t")[:4] == ["NUMBER", "PUBLISHED", "ROWS", "FILES"]
    assert newest.startswith("5\t")
    assert newest.endswith("\tr5\tunaudited, rollback to 0")
    assert oldest.startswith("0\t")
    assert len(run("publications", "lake.flights", "--limit", "1").splitlines()) == 2


def test_shares_are_listed_with_what_recipients_read(provider: Provider, run: Runner) -> None:
    assert run("share", "list").splitlines() == [
        "flights.lake.flights\tlake.flights\tpublication 0",
        "flights.lake.planned\tlake.planned\tnot published yet",
    ]


def test_a_table_that_cannot_be_shared_is_not_followed_either(
    provider: Provider, run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = str(tmp_path / "table")
    ended = run.ended("table", "follow", table, "--as", "lake.planned", "--share", "flights")
    assert (ended.code, "declared by a contract" in ended.errors) == (1, True)
    assert run("table", "list") == ""
    run("table", "follow", table, "--as", "lake.planned", "--share", "partners")
    assert run.ended("table", "follow", table, "--as", "lake.planned", "--share", "flights").code == 1
    # Settings of the server are not needed for what follows.
    monkeypatch.setenv("LAKESHARE_PORT", "none")
    assert run("table", "list").startswith("lake.planned\t")
    assert "lake.planned is followed no more" in run("table", "unfollow", "lake.planned")


def test_whoever_ends_the_following_of_a_table_is_told_that_directory_access_ended(
    provider: Provider, run: Runner, tmp_path: Path
) -> None:
    run("table", "follow", str(tmp_path / "table"), "--as", "sales.orders", "--share", "partners")
    allow_directory_access(provider.catalog, "partners", "sales", "orders", allowed=True)
    said = run("table", "unfollow", "sales.orders")
    assert "partners.sales.orders: directory access has ended" in said
    assert "lakeshare table directory-access partners.sales.orders --allow" in said
    other = a_delta_table(tmp_path / "other")
    again = run("table", "follow", str(other), "--as", "sales.orders", "--share", "partners")
    assert "directory access" not in again
    assert "directory access\tno" in run("table", "show", "partners.sales.orders")


def test_a_name_that_recipients_read_another_table_by_is_refused(
    provider: Provider, run: Runner, tmp_path: Path
) -> None:
    share_table(provider.catalog, "partners", SharedTable("sales", "orders", "lake.flights"))
    follow = ("table", "follow", str(tmp_path / "table"), "--as", "sales.orders", "--share", "partners")
    ended = run.ended(*follow)
    assert (ended.code, run("table", "list")) == (1, "")
    assert "partners.sales.orders is shared already, as lake.flights" in ended.errors
    assert "publication 0" in run("share", "list")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["recipient", "add", "bob", "--share", "nothing"], "'nothing' does not exist"),
        (["recipient", "add", "a b", "--share", "flights"], "recipient: 'a b' cannot be used"),
        (["recipient", "rotate", "eve"], "'eve' does not exist"),
        (["recipient", "revoke", "eve"], "'eve' does not exist"),
        (["publications", "no.table"], "Published are: lake.flights"),
    ],
)
def test_refusals_are_a_sentence_and_exit_code_1(
    provider: Provider, run: Runner, tmp_path: Path, arguments: list[str], said: str
) -> None:
    ended = run.ended(*arguments)
    assert ended.code == 1
    assert said in ended.errors
    assert not list(tmp_path.glob("*.share"))


@pytest.mark.parametrize(
    "name",
    ["serve", "publications", "explain", "snippet", "recipient", "share", "recipient add", "share list"],
)
def test_every_command_explains_itself(run: Runner, name: str) -> None:
    assert name.split()[0] in run("--help")
    assert "Usage" in run(*name.split(), "--help")


def test_the_commands_are_mounted_on_another_application_as_they_are(run: Runner) -> None:
    other = typer.Typer(no_args_is_help=True)
    add_commands(other)
    names = [command.callback.__name__ for command in other.registered_commands if command.callback]
    groups = [group.name for group in other.registered_groups]
    assert (names, groups) == (
        [
            *("serve", "publications", "explain", "snippet", "usage", "activate", "sql"),
            *("apply", "diff", "export", "verify"),
        ],
        [
            "recipient",
            "group",
            "share",
            "table",
            "webhook",
            "admin",
            "as",
            "conformance",
            "audit",
            "evidence",
            "db",
        ],
    )
