"""`lakeshare as RECIPIENT` prints what that recipient gets from a running server, and the log says who looked."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import deltalake
import httpx
import pytest
from sqlalchemy import select

from lakeshare_server.catalog.credentials import add_admin_key
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.catalog.sharing import alter_recipient, editing, grant
from lakeshare_server.cli import main
from lakeshare_server.cli.impersonation import ALL_CAPABILITIES, FileTotals, capabilities_of, sum_files
from lakeshare_server.protocol.lines import HEADER
from lakeshare_server.routes.context import IMPERSONATION
from tests.builders.lake_tables import append_delta, some_rows
from tests.builders.recipients import Recipients
from tests.builders.sharing import FLIGHTS, Provider, Running, a_provider, a_server

TABLE = "flights.lake.flights"
PATIENCE_S = 30


@dataclass(frozen=True)
class Seen:
    """A provider, its running server, and there the tokens of bob, of ann, who reads one day, and of sue, a steward."""

    provider: Provider
    server: Running
    token: str
    ann: str
    key: str

    def bob(self, token: str | None = None) -> httpx.Client:
        client = self.server.client(token or self.token)
        client.headers[HEADER] = capabilities_of(ALL_CAPABILITIES)
        return client


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("seen")
    provider = a_provider(folder)
    feed = {"delta.enableChangeDataFeed": "true"}
    table = folder / "table"
    deltalake.write_deltalake(table, some_rows(), partition_by=["day"], configuration=feed)
    provider.publish_delta("lake.flights", table)
    provider.publish_delta("lake.flights", table, append_delta(table, some_rows(days=1)))
    provider.share("lake.flights", "lake.planned")
    token = provider.recipient()
    provider.recipient("nobody", ())
    ann = provider.recipient("ann", ())
    with editing(provider.catalog, "tests") as edit:
        key = add_admin_key(edit, "sue", "steward")[1]
        grant(edit, "flights", recipient="ann", rule="day = '2013-01-03'")
    with a_server(provider) as server:
        yield Seen(provider, server, token, ann, key)


Look = Callable[..., str]


@pytest.fixture
def look(seen: Seen, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Look:
    """Run `lakeshare as …`; what it prints, or with `code=1` what it says instead."""
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(seen.provider.settings.state_dir))

    def run(*arguments: str, code: int = 0) -> str:
        monkeypatch.setattr("sys.argv", ["lakeshare", "as", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == code, said.err
        return said.err if code else said.out

    return run


def test_listings_are_those_of_the_recipient(seen: Seen, look: Look) -> None:
    with seen.bob() as bob:
        shares = [one["name"] for one in bob.get("/shares").json()["items"]]
        tables = bob.get("/shares/flights/all-tables").json()["items"]

    assert look("bob", "shares").splitlines() == shares
    assert look("bob", "tables").splitlines() == [f"flights.{one['schema']}.{one['name']}" for one in tables]
    assert look("bob", "tables", "FLIGHTS") == look("bob", "tables")
    assert look("nobody", "shares") == ""


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (["query", TABLE, "--lines"], ("POST", "/query", {})),
        (
            ["query", TABLE, "--where", "day = '2013-01-02'", "--limit", "2", "--version", "0", "--lines"],
            ("POST", "/query", {"predicateHints": ["day = '2013-01-02'"], "limitHint": 2, "version": 0}),
        ),
        (["metadata", TABLE], ("GET", "/metadata", {})),
        (["metadata", TABLE, "--version", "0"], ("GET", "/metadata", {"version": 0})),
        (["changes", TABLE, "--from", "1", "--lines"], ("GET", "/changes", {"startingVersion": 1})),
    ],
    ids=["query", "narrowed query", "metadata", "earlier metadata", "changes"],
)
def test_lines_are_those_of_the_recipient(
    seen: Seen, look: Look, command: list[str], asked: tuple[str, str, dict[str, Any]]
) -> None:
    method, call, fields = asked
    given = {"json": fields} if method == "POST" else {"params": fields}
    with seen.bob() as bob:
        answer = bob.request(method, FLIGHTS + call, **given)

    printed = look("bob", *command)

    assert unsigned(printed) == unsigned(answer.text)
    assert len(printed.splitlines()) > 1


def test_a_rule_narrows_what_is_seen_as_what_is_read(seen: Seen, look: Look) -> None:
    with seen.bob(seen.ann) as ann:
        answer = ann.post(f"{FLIGHTS}/query", json={})

    assert unsigned(look("ann", "query", TABLE, "--lines")) == unsigned(answer.text)
    assert look("ann", "query", TABLE).startswith("version 1: 1 files, ")
    rows = [line.split("\t") for line in look("ann", "preview", TABLE, "--rows", "50").splitlines()]
    assert {row[rows[0].index("day")] for row in rows[1:]} == {"2013-01-03"}


def unsigned(text: str) -> list[Any]:
    """Lines without what differs by the minute or by who looks: when URLs end, and for whom they are signed."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {name: one for name, one in value.items() if name != "expirationTimestamp"}
            return {name: plain(one) for name, one in kept.items()}
        is_url = isinstance(value, str) and value.startswith("http")
        return httpx.URL(value).path.partition("/files/")[2].partition("/")[2] if is_url else value

    return [plain(json.loads(line)) for line in text.splitlines()]


def test_figures_tell_files_bytes_and_rows(seen: Seen, look: Look) -> None:
    whole, one_day = look("bob", "query", TABLE), look("bob", "query", TABLE, "--where", "day = '2013-01-03'")

    assert whole.startswith("version 1: 4 files, ")
    assert whole.endswith(" 16 rows\n")
    assert one_day.startswith("version 1: 1 files, ")
    assert one_day.endswith(" 4 rows\n")
    heading, *changed = [line.split("\t") for line in look("bob", "changes", TABLE).splitlines()]
    assert [(line[0], line[1], line[2], line[4]) for line in changed] == [
        ("0", "add", "3", "12"),
        ("1", "add", "1", "4"),
    ]
    assert heading[0] == "VERSION"
    _, *versions = [line.split("\t") for line in look("bob", "versions", TABLE).splitlines()]
    assert [(line[0], line[2], line[3], line[4]) for line in versions] == [
        ("1", "1", "0", "4"),
        ("0", "3", "0", "12"),
    ]
    assert len(look("bob", "versions", TABLE, "--limit", "1").splitlines()) == 2


def test_a_bound_with_a_separator_of_lines_ends_no_line_of_a_response() -> None:
    stats = json.dumps({"numRecords": 2, "maxValues": {"note": "a\u2028b\x85c"}}, ensure_ascii=False)
    line = json.dumps({"file": {"url": "x", "size": 5, "stats": stats}}, ensure_ascii=False)
    assert sum_files(httpx.Response(200, text=f"{line}\n{line}\n")) == {(None, "add"): FileTotals(2, 10, 4)}


def test_a_preview_has_the_rows_behind_the_urls(look: Look) -> None:
    heading, *rows = [line.split("\t") for line in look("bob", "preview", TABLE, "--rows", "6").splitlines()]
    source = some_rows()

    assert heading == source.column_names
    assert len(rows) == 6
    numbers = dict(zip(source["distance"].to_pylist(), source["day"].to_pylist(), strict=True))
    for row in rows:
        told = dict(zip(heading, row, strict=True))
        # The day is in no file: it is the partition's.
        assert told["day"] == numbers[int(told["distance"])].isoformat()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nobody", "query", TABLE), "nobody gets 404 RESOURCE_DOES_NOT_EXIST: "),
        (("bob", "query", "flights.lake.planned"), "bob gets 404 RESOURCE_DOES_NOT_EXIST: "),
        (("bob", "query", TABLE, "--version", "7"), "bob gets 400 INVALID_PARAMETER_VALUE: "),
        (("bob", "query", "flights/flights"), "Give share.schema.table"),
        (("bob", "query", TABLE, "--client", "sparc"), "Known are: python-parquet, "),
        (("bobby", "shares"), "Recipient 'bobby' does not exist"),
    ],
)
def test_what_the_recipient_is_refused_is_told_in_the_same_words(
    look: Look, arguments: tuple[str, ...], said: str
) -> None:
    assert said in look(*arguments, code=1)


def test_who_is_let_in_nowhere_sees_nothing(seen: Seen, look: Look) -> None:
    catalog = seen.provider.catalog
    for name in ("gone", "late"):
        Recipients(catalog).add(name, ["flights"])
    Recipients(catalog).revoke("gone")
    with editing(catalog, "tests") as edit:
        alter_recipient(edit, "late", expires_at=datetime.now(UTC) - timedelta(days=1))

    assert "gone gets nothing: it was revoked on 20" in look("gone", "shares", code=1)
    assert "late gets nothing: it expired on 20" in look("late", "shares", code=1)


def test_the_log_has_who_looked_and_as_whom(seen: Seen, look: Look) -> None:
    told = AuditRow.recipient, AuditRow.action, AuditRow.object_name, AuditRow.status, AuditRow.ip
    looked_at = select(*told).where(AuditRow.principal == "command line", AuditRow.recipient.is_not(None))

    def newest() -> tuple[Any, ...]:
        with seen.provider.catalog.reading() as session:
            return tuple(session.execute(looked_at.order_by(AuditRow.key.desc()).limit(1)).one())

    look("bob", "query", TABLE)
    assert newest() == ("bob", "query_table", TABLE, 200, None)
    look("nobody", "query", TABLE, code=1)
    assert newest() == ("nobody", "query_table", TABLE, 404, None)


@pytest.mark.parametrize("name", ["bob", "ann"])
def test_the_admin_api_shows_the_answers_of_the_recipient(seen: Seen, name: str) -> None:
    root = (
        f"{seen.server.url.removesuffix('/delta-sharing')}/api/2.1/opensharing/provider/recipients/{name}/as"
    )
    sue = httpx.Client(
        verify=False,
        headers={"Authorization": f"Bearer {seen.key}", HEADER: capabilities_of(ALL_CAPABILITIES)},
    )
    question = {"predicateHints": ["day >= '2013-01-02'"]}
    with seen.bob({"bob": seen.token, "ann": seen.ann}[name]) as own, sue:
        for asked, answer in (
            (own.get("/shares"), sue.get(f"{root}/shares")),
            (own.get(f"{FLIGHTS}/metadata?version=0"), sue.get(f"{root}{FLIGHTS}/metadata?version=0")),
            (own.post(f"{FLIGHTS}/query", json=question), sue.post(f"{root}{FLIGHTS}/query", json=question)),
            (own.get("/shares/absent"), sue.get(f"{root}/shares/absent")),
        ):
            assert (answer.status_code, unsigned(answer.text)) == (asked.status_code, unsigned(asked.text))
            told = "delta-table-version"
            assert answer.headers.get(told) == asked.headers.get(told)
        assert sue.get(f"{root}/%2e%2e/api/docs").status_code == 404
    wanted = {"list_shares", "table_metadata", "query_table"}
    until(lambda: wanted <= actions_of(seen.provider, "sue", name))


def actions_of(provider: Provider, principal: str, recipient: str) -> set[str]:
    """What the log has that somebody looked at as a recipient."""
    mine = select(AuditRow.action).where(AuditRow.principal == principal, AuditRow.recipient == recipient)
    with provider.catalog.reading() as session:
        return set(session.scalars(mine))


def until(holds: Callable[[], bool]) -> None:
    """Wait for what a running server writes a moment after its answer."""
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends


def test_nothing_that_is_sent_opens_a_recipients_eyes(seen: Seen) -> None:
    for name in (IMPERSONATION, "Lakeshare-Seen-As", f"state.{IMPERSONATION}"):
        with seen.server.client(None) as anybody:
            answers = [
                anybody.get("/shares", headers={name: "bob"}),
                anybody.get("/shares", params={name: "bob"}),
                anybody.get("/shares", headers={"Cookie": f"{name}=bob"}),
                anybody.post(f"{FLIGHTS}/query", json={name: {"reader": {"name": "bob"}, "by": "me"}}),
            ]
        assert [answer.status_code for answer in answers] == [401] * len(answers)
