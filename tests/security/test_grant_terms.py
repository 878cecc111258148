"""What a grant comes to for one reader at one moment: properties, groups, the table's rule, times, a publication."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from pyiceberg.types import StringType

from lakeshare_server.access.rules import require_decidable, require_decidable_rules
from lakeshare_server.catalog import Ledger, allow_directory_access, states
from lakeshare_server.catalog.sharing import (
    Edit,
    add_table,
    alter_share,
    alter_table,
    create_share,
    drop_share,
    editing,
    grant,
    revoke,
)
from lakeshare_server.catalog.states import SharedTable
from lakeshare_server.errors import BadRequest
from lakeshare_server.storage import Stores
from lakeshare_server.versions import Versions
from tests.builders.grants import alter_shared, describe, grant_to, grant_to_group
from tests.builders.iceberg_rest import TABLE, door
from tests.builders.lake_tables import a_delta_table, an_iceberg_table, append_delta, some_rows
from tests.builders.recipients import Recipients
from tests.builders.sharing import FLIGHTS, Provider, Running, a_provider, a_server, files, lines

PATH = "flights.lake.flights"
FIRST, SECOND, THIRD = (f"2013-01-0{day}" for day in (1, 2, 3))
TERMS = {"rule": None, "publication": None, "start_version": None}
WITHIN_S = 10


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Provider:
    """Flights of three days; versions 0, 1 and 2 have one file, two and three files of the first day."""
    folder = tmp_path_factory.mktemp("terms")
    provider = a_provider(folder)
    location = a_delta_table(folder / "table")
    provider.publish_delta("lake.flights", location)
    for _ in range(2):
        append_delta(location, some_rows(days=1))
        provider.publish_delta("lake.flights", location)
    provider.publish_delta("lake.unpartitioned", a_delta_table(folder / "other", partitioned_by=()))
    evolved = an_iceberg_table(folder / "evolved")
    with evolved.table.update_spec() as spec:
        spec.remove_field("day").add_identity("cancelled")
    evolved.append(some_rows(days=1))
    provider.publish_iceberg("lake.evolved", evolved.state())
    evolving = an_iceberg_table(folder / "evolving", some_rows(days=1))
    provider.publish_iceberg("lake.evolving", evolving.state())
    evolving.append(some_rows(days=1))
    provider.publish_iceberg("lake.evolving", evolving.state())
    with evolving.table.update_schema() as schema:
        schema.add_column("added_later", StringType())
    evolving.append(some_rows(days=1))
    provider.publish_iceberg("lake.evolving", evolving.state())
    provider.share("lake.flights", "lake.unpartitioned", "lake.evolved", "lake.evolving")
    return provider


@pytest.fixture(scope="module")
def server(provider: Provider) -> Iterator[Running]:
    with a_server(provider) as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture
def client(provider: Provider, server: Running, name: str) -> Iterator[httpx.Client]:
    """Of a recipient that is named for the test, with a grant on no share yet."""
    alter_shared(provider, PATH, **TERMS)
    with server.client(provider.recipient(name, shares=())) as client:
        yield client


def days(client: httpx.Client) -> list[str]:
    """The day of each file that a query tells of."""
    return sorted(file["partitionValues"]["day"] for file in files(client.post(f"{FLIGHTS}/query", json={})))


def until(holds: Callable[[], bool], said: str) -> None:
    """Ask again and again; a client that polls would."""
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, said


def test_a_rule_speaks_of_properties_of_its_reader(
    provider: Provider, client: httpx.Client, name: str
) -> None:
    grant_to(provider, name, rule="day = current_recipient('from')")
    # Without the property it is not the rule of nobody: it lets nothing through.
    assert days(client) == []
    describe(provider, name, {"from": SECOND})
    assert days(client) == [SECOND]
    describe(provider, name, {"from": THIRD, "other": "x"})
    assert days(client) == [THIRD]
    for useless in ("never", "2013-01-01'", "' OR '1'='1", "2013-01-01 OR TRUE"):
        describe(provider, name, {"from": useless})
        answer = client.post(f"{FLIGHTS}/query", json={})
        assert (answer.status_code, answer.json()["errorCode"]) == (400, "UNSUPPORTED_OPERATION")


def test_what_lacks_a_property_lets_nothing_through_however_it_is_negated(
    provider: Provider, client: httpx.Client, name: str
) -> None:
    for rule in (
        "NOT day = CURRENT_RECIPIENT().from_day",
        "day = current_recipient('from_day') OR day IS NOT NULL",
        "day <> current_recipient('from_day')",
    ):
        grant_to(provider, name, rule=rule)
        assert days(client) == [], rule


def test_every_recipient_has_its_own_name_and_id(provider: Provider, client: httpx.Client, name: str) -> None:
    grant_to(
        provider,
        name,
        rule=f"current_recipient('lakeshare.name') = '{name}' AND day = '{FIRST}'".split(" AND ")[1],
    )
    assert set(days(client)) == {FIRST}
    grant_to(provider, name, rule="day = current_recipient('lakeshare.name')")
    # It is there, but no day.
    assert client.post(f"{FLIGHTS}/query", json={}).status_code == 400


def test_grants_add_up_and_the_rule_of_the_table_cuts_all_of_them(
    provider: Provider, client: httpx.Client, name: str
) -> None:
    grant_to(provider, name, rule=f"day = '{FIRST}'")
    assert days(client) == [FIRST] * 3
    grant_to_group(provider, f"{name}-third", (name,), rule=f"day = '{THIRD}'")
    assert days(client) == [FIRST] * 3 + [THIRD]
    alter_shared(provider, PATH, rule=f"day >= DATE '{SECOND}'")
    assert days(client) == [THIRD]
    grant_to_group(provider, f"{name}-all", (name,))
    assert days(client) == [SECOND, THIRD]
    alter_shared(provider, PATH, rule=None)
    assert days(client) == [FIRST] * 3 + [SECOND, THIRD]


def test_limits_and_counts_are_of_the_files_that_may_be_read(
    provider: Provider, client: httpx.Client, name: str
) -> None:
    grant_to(provider, name, rule=f"day = '{FIRST}'")
    # Four rows each: without the rule, files of other days would fill the limit.
    for limit, told in ((1, 1), (4, 1), (5, 2), (12, 3), (100, 3)):
        assert len(files(client.post(f"{FLIGHTS}/query", json={"limitHint": limit}))) == told
    [_, metadata] = lines(client.get(f"{FLIGHTS}/metadata"))
    sizes = [file["size"] for file in files(client.post(f"{FLIGHTS}/query", json={}))]
    assert (metadata["metaData"]["numFiles"], metadata["metaData"]["size"]) == (3, sum(sizes))
    hints = {"predicateHints": [f"day = '{SECOND}'"]}
    assert files(client.post(f"{FLIGHTS}/query", json=hints)) == []


def test_grants_begin_and_end_by_themselves(provider: Provider, client: httpx.Client, name: str) -> None:
    now = datetime.now(UTC)
    grant_to(provider, name, starts_at=now - timedelta(days=2), ends_at=now - timedelta(days=1))
    version, shares = f"{FLIGHTS}/version", "/shares"
    assert client.get(version).status_code == 404
    assert client.get(shares).json()["items"] == []
    lead = timedelta(seconds=0.8)
    soon = datetime.now(UTC) + lead
    grant_to(provider, name, starts_at=soon, ends_at=soon + lead)
    while client.get(version).status_code != 404 or datetime.now(UTC) >= soon:
        # The commit, on a busy disk, or the request took longer.
        lead *= 2
        soon = datetime.now(UTC) + lead
        grant_to(provider, name, starts_at=soon, ends_at=soon + lead)
    generation = provider.catalog.generation()
    until(lambda: client.get(version).status_code == 200, "it never began")
    assert datetime.now(UTC) >= soon
    assert [share["name"] for share in client.get(shares).json()["items"]] == ["flights"]
    until(lambda: client.get(version).status_code == 404, "it never ended")
    # Within one second of its end, with nobody writing.
    assert soon + lead <= datetime.now(UTC) < soon + lead + timedelta(seconds=1)
    assert client.get(shares).json()["items"] == []
    assert client.get("/shares/flights").status_code == 404
    assert provider.catalog.generation() == generation


def test_a_rule_ends_with_the_grant_that_has_it(provider: Provider, client: httpx.Client, name: str) -> None:
    ends_at = datetime.now(UTC) + timedelta(seconds=0.8)
    grant_to(provider, name, rule=f"day = '{FIRST}'")
    grant_to_group(provider, f"{name}-soon", (name,), rule=f"day = '{SECOND}'", ends_at=ends_at)
    assert days(client) == [FIRST] * 3 + [SECOND]
    until(lambda: days(client) == [FIRST] * 3, "the rule of the group never ended")
    assert datetime.now(UTC) >= ends_at


def test_pages_do_not_go_on_under_another_rule(provider: Provider, client: httpx.Client, name: str) -> None:
    grant_to(provider, name)
    first = lines(client.post(f"{FLIGHTS}/query", json={"maxFiles": 1}))
    [token] = [line["endStreamAction"]["nextPageToken"] for line in first if "endStreamAction" in line]
    following = {"maxFiles": 1, "pageToken": token}
    assert len(files(client.post(f"{FLIGHTS}/query", json=following))) == 1
    grant_to(provider, name, rule=f"day = '{FIRST}'")
    answer = client.post(f"{FLIGHTS}/query", json=following)
    assert (answer.status_code, answer.json()["errorCode"]) == (400, "INVALID_PARAMETER_VALUE")
    grant_to(provider, name)
    assert len(files(client.post(f"{FLIGHTS}/query", json=following))) == 1


def test_a_chosen_publication_is_the_newest_there_is(
    provider: Provider, client: httpx.Client, name: str
) -> None:
    grant_to(provider, name)
    alter_shared(provider, PATH, publication=1)
    assert client.get(f"{FLIGHTS}/version").headers["Delta-Table-Version"] == "1"
    assert len(days(client)) == 4
    assert files(client.post(f"{FLIGHTS}/query", json={"version": 0})) != []
    for asked in ({"version": 2}, {"startingVersion": 2}, {"startingVersion": 0, "endingVersion": 2}):
        assert client.post(f"{FLIGHTS}/query", json=asked).status_code == 400, asked
    [added] = [
        one["add"]
        for one in lines(client.post(f"{FLIGHTS}/query", json={"startingVersion": 1}))
        if "add" in one
    ]
    assert added["version"] == 1
    later = datetime.now(UTC) + timedelta(days=1)
    assert (
        client.get(f"{FLIGHTS}/version", params={"startingTimestamp": later.isoformat()}).status_code == 400
    )
    alter_shared(provider, PATH, publication=7)
    assert client.get(f"{FLIGHTS}/version").status_code == 404
    alter_shared(provider, PATH, publication=None)
    assert client.get(f"{FLIGHTS}/version").headers["Delta-Table-Version"] == "2"


def test_directory_access_is_never_together_with_a_rule(
    provider: Provider, client: httpx.Client, name: str
) -> None:
    allow_directory_access(provider.catalog, *PATH.split("."), allowed=True)
    grant_to(provider, name, rule="day IS NOT NULL")
    refused = client.post(f"{FLIGHTS}/temporary-table-credentials", json={})
    assert (refused.status_code, "not shared with you" in refused.text) == (400, True)
    listed = client.get("/shares/flights/all-tables").json()["items"]
    assert all("location" not in table for table in listed)
    grant_to(provider, name)
    for terms, said in (({"rule": "day IS NOT NULL"}, "rows"), ({"publication": 1}, "versions after 1")):
        alter_shared(provider, PATH, **(TERMS | terms))
        refused = client.post(f"{FLIGHTS}/temporary-table-credentials", json={})
        assert (refused.status_code, said in refused.text) == (400, True), refused.text


@pytest.mark.parametrize(
    ("table", "rule"),
    [
        ("flights", "flight = 1001"),
        ("flights", "nothing = 1"),
        ("flights", "day = 'never'"),
        ("flights", "day = 5"),
        ("unpartitioned", "day = '2013-01-01'"),
        ("evolved", "day = '2013-01-01'"),
        ("evolved", "cancelled = true"),
        ("evolved", "day IS NULL OR NOT cancelled"),
    ],
)
def test_what_partitions_do_not_decide_is_refused_when_written_and_when_read(
    provider: Provider, server: Running, table: str, rule: str
) -> None:
    versions = Versions(provider.catalog, provider.settings, Stores(provider.settings))
    tables = {f"flights.lake.{table}": versions.of(f"lake.{table}")}
    with pytest.raises(BadRequest, match=r"rule: .*") as refused:
        require_decidable("rule", rule, tables)
    assert "share a view" in str(refused.value)
    name = f"{table}-{abs(hash(rule))}"
    token = provider.recipient(name)
    grant_to(provider, name, rule=rule)
    path = f"/shares/flights/schemas/lake/tables/{table}"
    with server.client(token) as client:
        for answer in (
            client.post(f"{path}/query", json={}),
            client.post(f"{path}/query", json={"startingVersion": 0}),
            client.get(f"{path}/metadata"),
        ):
            assert (answer.status_code, answer.json()["errorCode"]) == (400, "UNSUPPORTED_OPERATION")
            assert "/files/" not in answer.text


def test_an_edit_whose_rules_are_not_decided_leaves_nothing_behind(provider: Provider, name: str) -> None:
    versions = Versions(provider.catalog, provider.settings, Stores(provider.settings))
    provider.recipient(name, shares=())

    def edited(*steps: Callable[[Edit], object]) -> None:
        with editing(provider.catalog, "tests") as edit:
            for step in steps:
                step(edit)
            require_decidable_rules(edit, versions)

    def granted(rule: str, share: str = name) -> Callable[[Edit], object]:
        return lambda edit: grant(edit, share, recipient=name, rule=rule)

    def added(table: str, rule: str | None = None) -> Callable[[Edit], object]:
        return lambda edit: add_table(
            edit, name, SharedTable(schema="lake", name=table, table=f"lake.{table}", rule=rule)
        )

    edited(lambda edit: create_share(edit, name), added("flights"), granted("day = '2013-01-01'"))
    for steps in (
        [granted("flight = 1001")],
        [granted("day =")],
        # The share has a rule that the table cannot decide.
        [added("unpartitioned")],
        [lambda edit: revoke(edit, name, recipient=name), added("unpartitioned", "day = '2013-01-01'")],
        [lambda edit: alter_table(edit, name, "lake", "flights", rule="carrier = 'UA'")],
        [granted("carrier = 'UA'"), lambda edit: alter_share(edit, name, new_name=f"{name}-new")],
    ):
        with pytest.raises(BadRequest, match="rule"):
            edited(*steps)
    with provider.catalog.reading() as session:
        assert [one.rule for one in states.list_grants(session, share=name)] == ["day = '2013-01-01'"]
        assert [(one.name, one.rule) for one in states.list_objects(session, name)] == [("flights", None)]
    edited(granted("nothing = 1"), lambda edit: drop_share(edit, name))


def test_rules_that_partitions_decide_are_taken(provider: Provider) -> None:
    versions = Versions(provider.catalog, provider.settings, Stores(provider.settings))
    tables = {PATH: versions.of("lake.flights"), "flights.lake.planned": versions.of("lake.planned")}
    for rule in ("DAY >= DATE '2013-01-02'", "day = current_recipient('from')", "day is null", "true"):
        require_decidable("rule", rule, tables)


def test_a_revoked_recipient_reads_nothing_whatever_its_groups(
    provider: Provider, client: httpx.Client, name: str
) -> None:
    grant_to_group(provider, f"{name}-all", (name,))
    assert days(client) != []
    Recipients(provider.catalog).revoke(name)
    assert client.get(f"{FLIGHTS}/version").status_code == 401


def test_a_rule_that_nobody_understands_lets_nothing_through(
    provider: Provider, client: httpx.Client, name: str
) -> None:
    grant_to(provider, name, rule="day = '2013-01-01' OR later(words)")
    assert days(client) == []
    alter_shared(provider, PATH, rule="words of a later version")
    grant_to(provider, name)
    assert days(client) == []


def test_timestamps_after_a_chosen_publication_lead_to_nothing_newer(
    provider: Provider, client: httpx.Client, name: str
) -> None:
    grant_to(provider, name)
    alter_shared(provider, "flights.lake.evolving", publication=1)
    times = [row.published_at for row in Ledger(provider.catalog).history("lake.evolving")][::-1]
    evolving = FLIGHTS.replace("tables/flights", "tables/evolving")
    for at, version in zip(times, (0, 1, None), strict=True):
        answer = client.post(f"{evolving}/query", json={"timestamp": at.isoformat()})
        assert answer.headers.get("Delta-Table-Version") == (None if version is None else str(version)), at
        assert answer.status_code == (400 if version is None else 200)
    later = (times[-1] + timedelta(days=1)).isoformat()
    changes = lines(
        client.get(f"{evolving}/changes", params={"startingVersion": 0, "endingTimestamp": later})
    )
    assert {line["add"]["version"] for line in changes if "add" in line} == {0, 1}
    for asked in ({"startingTimestamp": times[2].isoformat()}, {"startingTimestamp": later}):
        assert client.get(f"{evolving}/changes", params=asked).status_code == 400
        assert client.get(f"{evolving}/version", params=asked).status_code == 400


def test_iceberg_clients_get_no_snapshot_after_a_chosen_publication(
    provider: Provider, server: Running, name: str
) -> None:
    token = provider.recipient(name)
    alter_shared(provider, "flights.lake.evolving", publication=1)
    snapshots = [row.snapshot_id for row in Ledger(provider.catalog).history("lake.evolving")][::-1]
    with door(server, token) as catalog:
        table = TABLE.replace("tables/flights", "tables/evolving")
        loaded = catalog.get(table)
        metadata = loaded.json()["metadata"]
        assert [snapshot["snapshot-id"] for snapshot in metadata["snapshots"]] == snapshots[:2]
        assert metadata["current-snapshot-id"] == snapshots[1]
        assert str(snapshots[2]) not in loaded.text
        assert "added_later" not in loaded.text
        statuses = [
            catalog.post(f"{table}/plan", json={"snapshot-id": snapshot}).status_code
            for snapshot in snapshots
        ]
    assert statuses == [200, 200, 400]
