"""What the server sends stays as its snapshots: the sharing protocol, the Iceberg REST catalog, the admin API, pages.

The tables are written by hand, so that sizes, ids and statistics are the same in every run. Texts of errors are in
files of their own (`messages_….txt`): their wording may improve, a field or a status may not change.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path

import httpx
import pytest

from lakeshare_server.catalog import DeclaredShare, SharedTable, apply_shares
from lakeshare_server.catalog.sharing import editing
from lakeshare_server.tables import read_delta
from tests.builders import people
from tests.builders.administration import PROVIDER, UNITY, Administered, an_administered_server
from tests.builders.answering_store import answering_store
from tests.builders.answering_store import said as said_by_store
from tests.builders.deletion_vector import inline_descriptor, to_z85
from tests.builders.iceberg_manifests import a_told_table, an_entry, by_day, the_schema
from tests.builders.lake_tables import IcebergState, IcebergTable, a_delta_table
from tests.builders.recipients import expire_token
from tests.builders.sharing import Provider, a_server
from tests.builders.snapshots import check_snapshot
from tests.builders.transcripts import Normaliser, Transcript
from tests.builders.waiting import wait_until
from tests.builders.written_log import WrittenLog, add, cdc, info, metadata, protocol, remove

SHARING = "/delta-sharing"
TABLES = f"{SHARING}/shares/flights/schemas/lake/tables"
ICEBERG = "/iceberg/v1"
NAMESPACE = f"{ICEBERG}/shares/flights/namespaces/lake"
DELTA = {"delta-sharing-capabilities": "responseformat=delta;readerfeatures=deletionvectors"}
END = {"delta-sharing-capabilities": "includeendstreamaction=true"}
CREDENTIALS = """<GetFederationTokenResponse><GetFederationTokenResult><Credentials><AccessKeyId>ASIA1</AccessKeyId>
<SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>
<Expiration>2030-01-01T00:00:00Z</Expiration></Credentials></GetFederationTokenResult></GetFederationTokenResponse>"""
BUCKET = "s3://lake/sales/orders"
FILE_ID = re.compile(r'(?<="id": ")([0-9a-f]{32}|[0-9a-f]{64})(?=")')
TABLE_NAMES = ("changes", "vectors", "typed", "iceberg", "people", "gone")
STATS = {
    "numRecords": 2,
    "minValues": {"id": 1, "s": "a"},
    "maxValues": {"id": 9, "s": "ü"},
    "nullCount": {"id": 0, "s": 1},
}
COLUMNS = [("id", "long"), ("s", "string"), ("amount", "decimal(10,2)"), ("at", "timestamp"), ("day", "date")]
SCHEMA = {
    "type": "struct",
    "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in COLUMNS],
}


@dataclass(frozen=True)
class Site:
    """The running server, its recipients' tokens, and what is to be replaced in its responses."""

    server: Administered
    tokens: dict[str, str]
    normalise: Normaliser

    def transcript(self, name: str | None = "bob") -> Transcript:
        return Transcript(self.client(name), replace(self.normalise, seen={}))

    def client(self, name: str | None) -> httpx.Client:
        token = self.server.keys.get(name or "") or self.tokens.get(name or "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(verify=False, base_url=self.server.root, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("frozen")
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        environment.setenv("AWS_ACCESS_KEY_ID", "AK")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        store = stack.enter_context(answering_store(lambda _: said_by_store("200 OK", CREDENTIALS)))
        server = stack.enter_context(
            an_administered_server(folder, s3_endpoint=store.endpoint, s3_region="eu-north-1")
        )
        provider = server.provider
        normalise = Normaliser({server.root: "<server>", str(folder): "<folder>"})
        write_changes(folder / "changes")
        provider.follow("lake.changes", folder / "changes")
        write_vectors(folder / "vectors")
        provider.follow("lake.vectors", folder / "vectors")
        write_typed(folder / "typed")
        provider.publish_delta("lake.typed", folder / "typed")
        provider.publish_iceberg("lake.iceberg", write_iceberg(folder / "iceberg", normalise))
        provider.follow("lake.gone", folder / "gone")
        write_people(provider, folder / "warehouse", normalise)
        orders = read_delta(str(a_delta_table(folder / "orders")))
        provider.publish("sales.orders", replace(orders, location=BUCKET, files=orders.files.slice(0, 0)))
        shares = {
            "flights": [SharedTable("lake", name, f"lake.{name}", history=True) for name in TABLE_NAMES],
            "Other": [SharedTable("lake", "typed", "lake.typed", history=False)],
            "sales": [SharedTable("sales", "orders", "sales.orders", history=True)],
        }
        apply_shares(
            provider.catalog, [DeclaredShare(name, tuple(tables)) for name, tables in shares.items()]
        )
        environment.setenv("LAKESHARE_STATE_DIR", str(provider.settings.state_dir))
        run_command(environment, "table", "directory-access", "sales.sales.orders", "--allow")
        tokens = {
            "bob": provider.recipient("bob", tuple(shares)),
            "stranger": provider.recipient("stranger", ()),
            "far": provider.recipient("far", tuple(shares)),
            "late": provider.recipient("late", tuple(shares)),
        }
        with editing(provider.catalog, "tests") as edit:
            expire_token(edit, tokens["late"])
        run_command(environment, "recipient", "ip", "far", "--allow", "203.0.113.7")
        yield Site(server, tokens, normalise)


def run_command(environment: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run `lakeshare` in this process."""
    [script] = entry_points(group="console_scripts", name="lakeshare")
    environment.setattr("sys.argv", ["lakeshare", *arguments])
    with pytest.raises(SystemExit) as ended:
        script.load()()
    assert ended.value.code == 0


def write_changes(location: Path) -> None:
    """Partitions, a change data feed, a removed file; one file has bytes to read."""
    log = WrittenLog(location)
    log.commit(protocol(), metadata(), add("p=a%20b/one.parquet"))
    log.commit(
        info("WRITE"), add("p=a%20b/two.parquet"), add("p=c/three.parquet", partitionValues={"p": "c"})
    )
    changes = cdc("_change_data/p=a%20b/changed.parquet")
    log.commit(info("UPDATE"), changes, remove("p=a%20b/one.parquet"), add("p=a%20b/four.parquet"))
    file = location / "p=a b" / "two.parquet"
    file.parent.mkdir()
    file.write_bytes(bytes(range(100)))
    # Its ETag is made of size and time.
    os.utime(file, (1_700_000_000, 1_700_000_000))


def write_vectors(location: Path) -> None:
    """Deletion vectors, in the log and in a file."""
    log = WrittenLog(location)
    stored = {
        "storageType": "u",
        "pathOrInlineDv": to_z85(bytes(range(16))),
        "offset": 1,
        "sizeInBytes": 34,
        "cardinality": 1,
    }
    features = ("deletionVectors", "changeDataFeed")
    log.commit(protocol(features=features), metadata({"delta.enableDeletionVectors": "true"}))
    log.commit(
        info("WRITE"),
        add("p=a/inline.parquet", deletionVector=inline_descriptor([0, 3])),
        add("p=a/stored.parquet", deletionVector=stored),
        add("p=a/whole.parquet"),
    )


def write_typed(location: Path) -> None:
    """Columns of several types with statistics, without partitions."""
    log = WrittenLog(location)
    given = metadata({}, partitions=(), schema=SCHEMA, name="typed", description="Of types")
    files = [
        add(
            f"part-{number}.parquet", partitionValues={}, stats=json.dumps(STATS | {"numRecords": number + 1})
        )
        for number in range(3)
    ]
    log.commit(protocol(1, 2), given, *files)


def write_iceberg(folder: Path, normalise: Normaliser) -> IcebergState:
    """An Iceberg table partitioned by day, of fixed ids and times."""
    paths = [folder / "data" / f"{number}.parquet" for number in (1, 2)]
    entries = [an_entry(number, file_path=str(path)) for number, path in enumerate(paths, 1)]
    location = Path(a_told_table(folder, the_schema(), by_day(), entries))
    table = json.loads(location.read_text())
    table |= {"table-uuid": "22222222-2222-2222-2222-222222222222", "last-updated-ms": 1_700_000_000_000}
    table["snapshots"][0]["timestamp-ms"] = 1_700_000_000_000
    location.write_text(json.dumps(table))
    for number, path in enumerate(paths, 1):
        normalise.know(path, f"file {number}")
    return IcebergState(str(location), table["current-snapshot-id"])


def write_people(provider: Provider, folder: Path, normalise: Normaliser) -> None:
    """Two publications of an Iceberg table with a record of their changes; names of its files are replaced."""
    table = IcebergTable(folder, people.people(1).schema)
    table.append(people.people(1, 2))
    people.publish(provider, table)
    table.append(people.people(3))
    people.publish(provider, table, [(1, 3, "insert")])
    for path in folder.rglob("*.parquet"):
        normalise.places[path.name] = "<name>.parquet"


def check(name: str, transcript: Transcript) -> None:
    check_snapshot(f"wire/{name}.txt", transcript.text())
    if transcript.messages:
        check_snapshot(f"wire/messages_{name}.txt", "\n".join(dict.fromkeys(transcript.messages)))


def test_listings(site: Site) -> None:
    send = site.transcript()
    for path in (
        "/shares",
        "/shares/flights",
        "/shares/FLIGHTS/schemas",
        "/shares/flights/schemas/lake/tables",
    ):
        send("GET", SHARING + path)
    for share in ("flights", "sales"):
        send("GET", f"{SHARING}/shares/{share}/all-tables")
    send.title("Pages")
    page = send("GET", f"{SHARING}/shares?maxResults=2").json()
    send("GET", f"{SHARING}/shares?maxResults=2&pageToken={page['nextPageToken']}")
    send("GET", f"{SHARING}/shares?maxResults=0")
    send("GET", f"{SHARING}/shares?pageToken=x")
    send("HEAD", f"{SHARING}/shares")
    send.title("A recipient without grants")
    with site.client("stranger") as stranger:
        send("GET", f"{SHARING}/shares", client=stranger)
    check("listings", send)


def test_metadata_and_versions(site: Site) -> None:
    send = site.transcript()
    for table in ("changes", "vectors", "typed", "iceberg"):
        send.title(table)
        send("GET", f"{TABLES}/{table}")
        send("GET", f"{TABLES}/{table}/version")
        send("HEAD", f"{TABLES}/{table}")
        send("GET", f"{TABLES}/{table}/metadata")
        send("GET", f"{TABLES}/{table}/metadata", headers=DELTA)
    send.title("Of an earlier version")
    send("GET", f"{TABLES}/changes/version?startingTimestamp=2023-11-14T22:13:21Z")
    send("GET", f"{TABLES}/changes/metadata?version=0")
    send("GET", f"{TABLES}/changes/metadata?version=9")
    check("metadata", send)


def test_queries(site: Site) -> None:
    send = site.transcript()
    for table in ("changes", "vectors", "typed", "iceberg"):
        send.title(table)
        send("POST", f"{TABLES}/{table}/query", {})
        send("POST", f"{TABLES}/{table}/query", {}, DELTA)
    send.title("Hints, versions and times")
    hint = {"op": "equal", "children": [
        {"op": "column", "name": "p", "valueType": "string"}, {"op": "literal", "value": "c", "valueType": "string"}
    ]}  # fmt: skip
    for body in (
        {"jsonPredicateHints": json.dumps(hint)},
        {"predicateHints": ["p = 'c'"]},
        {"limitHint": 1},
        {"version": 0},
        {"timestamp": "2023-11-14T22:13:21Z"},
        {"startingVersion": 1},
        {"startingVersion": 1, "endingVersion": 1},
    ):
        send("POST", f"{TABLES}/changes/query", body)
    send("POST", f"{TABLES}/changes/query", {"startingVersion": 0, "includeHistoricalProtocol": True}, DELTA)
    send.title("The closing line, pages and refresh tokens")
    send("POST", f"{TABLES}/changes/query", {}, END)
    send("POST", f"{TABLES}/changes/query", {"limitHint": 0}, END)
    first = send("POST", f"{TABLES}/changes/query", {"maxFiles": 2}).text.splitlines()
    token = json.loads(first[-1])["endStreamAction"]["nextPageToken"]
    send("POST", f"{TABLES}/changes/query", {"maxFiles": 2, "pageToken": token})
    refreshed = send("POST", f"{TABLES}/changes/query", {"includeRefreshToken": True}).text.splitlines()
    token = json.loads(refreshed[-1])["endStreamAction"]["refreshToken"]
    send("POST", f"{TABLES}/changes/query", {"refreshToken": token})
    send("POST", f"{TABLES}/changes/query", {}, {"fileidhash": "sha256"})
    send("POST", f"{TABLES}/changes/query", b"", {"accept-encoding": "gzip"})
    check("queries", send)


def test_changes(site: Site) -> None:
    send = site.transcript()
    for headers in ({}, DELTA):
        send("GET", f"{TABLES}/changes/changes?startingVersion=0", headers=headers)
        send("GET", f"{TABLES}/changes/changes?startingVersion=1&endingVersion=1", headers=headers)
    send("GET", f"{TABLES}/changes/changes?startingTimestamp=2023-11-14T22:13:22Z")
    send("GET", f"{TABLES}/changes/changes?startingVersion=0&includeHistoricalMetadata=true")
    page = send("GET", f"{TABLES}/changes/changes?startingVersion=0&maxFiles=3").text.splitlines()
    token = json.loads(page[-1])["endStreamAction"]["nextPageToken"]
    send("GET", f"{TABLES}/changes/changes?startingVersion=0&maxFiles=3&pageToken={token}")
    send.title("Refused")
    send("GET", f"{TABLES}/changes/changes")
    send("GET", f"{TABLES}/changes/changes?startingVersion=7")
    send("GET", f"{TABLES}/changes/changes?startingVersion=2&endingVersion=1")
    send("GET", f"{TABLES}/vectors/changes?startingVersion=0")
    send("GET", f"{SHARING}/shares/Other/schemas/lake/tables/typed/changes?startingVersion=0")
    check("changes", send)


def test_changes_of_an_iceberg_table(site: Site) -> None:
    send = site.transcript()
    for headers in ({}, DELTA):
        send("GET", f"{TABLES}/people/changes?startingVersion=0", headers=headers)
    # Digests of paths with the writer's random names: one of each file and scheme.
    ids: dict[str, str] = {}
    for number, line in enumerate(send.lines):
        send.lines[number] = FILE_ID.sub(lambda found: ids.setdefault(found[0], f"<id {len(ids) + 1}>"), line)
    assert len(ids) == 4
    check("iceberg_changes", send)


def test_async_queries(site: Site) -> None:
    send = site.transcript()
    asynchronous = {"delta-sharing-capabilities": "responseformat=parquet;asyncquery=true"}
    send("POST", f"{TABLES}/typed/query", {}, asynchronous)
    body = {"idempotencyKey": "33333333-3333-3333-3333-333333333333", "limitHint": 1}
    pending = send("POST", f"{TABLES}/typed/query", body, asynchronous)
    path = f"{TABLES}/typed/queries/{pending.json()['queryStatus']['queryId']}"
    wait_until(lambda: "queryStatus" not in send.client.post(path, json={}, headers=asynchronous).text)
    send("POST", path, {}, asynchronous)
    send("POST", path, {"maxFiles": 1}, asynchronous)
    send("POST", f"{TABLES}/typed/queries/none", {}, asynchronous)
    check("async_queries", send)


def test_temporary_credentials(site: Site) -> None:
    send = site.transcript()
    orders = f"{SHARING}/shares/sales/schemas/sales/tables/orders/temporary-table-credentials"
    send("POST", orders, {})
    send("POST", orders, {"location": BUCKET})
    send("POST", orders, {"location": "s3://other/place"})
    send("POST", f"{TABLES}/typed/temporary-table-credentials", {})
    check("temporary_credentials", send)


def test_files(site: Site) -> None:
    send = site.transcript()
    lines = send.client.post(f"{TABLES}/changes/query", json={}).text.splitlines()
    [url] = [file["url"] for line in lines[2:] if "two.parquet" in (file := json.loads(line)["file"])["url"]]
    path = str(httpx.URL(url).raw_path, "ascii")
    send("HEAD", path)
    send("GET", path, shows_body=False)
    for wanted in ("bytes=0-9", "bytes=-5", "bytes=95-", "bytes=100-", "bytes=0-1,4-5"):
        send("GET", path, headers={"range": wanted}, shows_body=False)
    send("GET", path[:-1] + ("0" if path[-1] != "0" else "1"))
    send("GET", path.partition("?")[0])
    check("files", send)


def test_errors_of_the_sharing_protocol(site: Site) -> None:
    send = site.transcript()
    query = f"{TABLES}/changes/query"
    send.title("400")
    for body in (
        {"version": -1},
        {"version": "x"},
        {"version": 9},
        {"version": 0, "timestamp": "2023-11-14T22:13:21Z"},
        {"timestamp": "yesterday"},
        {"limitHint": -1},
        {"maxFiles": 0},
        {"pageToken": "x"},
        {"refreshToken": "x"},
        {"startingVersion": 2, "endingVersion": 1},
        {"predicateHints": "p = 'c'"},
        {"jsonPredicateHints": "{"},
        [],
    ):
        send("POST", query, body)
    send("POST", query, b"{")
    send("POST", query, b'{"a": NaN}')
    send("POST", f"{TABLES}/vectors/query", {}, {"delta-sharing-capabilities": "responseformat=parquet"})
    send("POST", f"{TABLES}/gone/query", {})
    send("POST", f"{SHARING}/shares/Other/schemas/lake/tables/typed/query", {"version": 0})
    send.title("401")
    for client, headers in (
        (None, {}),
        (None, {"authorization": "Bearer wrong"}),
        (None, {"authorization": "Basic Ym9iOmJvYg=="}),
        ("late", {}),
    ):
        with site.client(client) as other:
            send("GET", f"{SHARING}/shares", headers=headers, client=other)
    send.title("403")
    with site.client("far") as far:
        send("GET", f"{SHARING}/shares", client=far)
    send.title("404 and 405")
    for path in (
        "/shares/none",
        "/shares/none/schemas",
        "/shares/flights/schemas/none/tables",
        "/shares/flights/schemas/lake/tables/none/metadata",
        "/shares/flights/schemas/lake/tables/none/version",
        "/nothing",
    ):
        send("GET", SHARING + path)
    send("GET", "/nothing")
    with site.client("stranger") as stranger:
        send("GET", f"{TABLES}/typed/metadata", client=stranger)
    send("DELETE", f"{SHARING}/shares")
    send("GET", query)
    check("sharing_errors", send)


def test_requests_over_the_limit(site: Site) -> None:
    provider = site.server.provider
    limited = replace(provider, settings=provider.settings.model_copy(update={"requests_per_minute": 1}))
    with a_server(limited) as server, server.client(site.tokens["bob"]) as client:
        send = Transcript(client, replace(site.normalise, seen={}))
        wait_until(lambda: client.get("/shares").status_code == 429)
        response = send("GET", "/shares")
        # It is the rest of the minute.
        send.lines = [line for line in send.lines if not line.startswith("< retry-after")]
        assert 0 < int(response.headers["retry-after"]) <= 60
        send.messages = []
    check("limits", send)


def test_iceberg_catalog(site: Site) -> None:
    send = site.transcript()
    send("GET", f"{ICEBERG}/config?warehouse=flights")
    send("GET", f"{ICEBERG}/config")
    send("GET", f"{ICEBERG}/config?warehouse=none")
    shares = f"{ICEBERG}/shares"
    for path in ("/flights/namespaces", "/flights/namespaces?parent=lake", "/none/namespaces"):
        send("GET", shares + path)
    send("GET", NAMESPACE)
    send("HEAD", NAMESPACE)
    send("GET", f"{shares}/flights/namespaces/none")
    send("GET", f"{NAMESPACE}/tables")
    page = send("GET", f"{NAMESPACE}/tables?pageSize=1").json()
    if "next-page-token" in page:
        send("GET", f"{NAMESPACE}/tables?pageSize=1&pageToken={page['next-page-token']}")
    table = f"{NAMESPACE}/tables/iceberg"
    send.title("A table")
    loaded = send("GET", table)
    send("HEAD", table)
    send("GET", table, headers={"if-none-match": loaded.headers.get("etag", "none")})
    send("GET", f"{NAMESPACE}/tables/none")
    send("HEAD", f"{NAMESPACE}/tables/none")
    send("GET", f"{NAMESPACE}/tables/typed")
    send("GET", f"{table}/credentials")
    send("POST", f"{table}/sign", {"method": "GET", "uri": "http://a/b", "region": "x", "headers": {}})
    send("POST", f"{table}/metrics", {})
    send.title("Scans")
    send("POST", f"{table}/plan", {})
    send("POST", f"{table}/plan", {"snapshot-id": 77, "select": ["n"], "case-sensitive": False})
    send("POST", f"{table}/plan", {"filter": {"type": "eq", "term": "n", "value": 1}})
    send("POST", f"{table}/plan", {"filter": {"type": "no"}})
    send("POST", f"{table}/plan", {"snapshot-id": 1})
    send("GET", f"{table}/plan/none")
    send("DELETE", f"{table}/plan/none")
    send("POST", f"{table}/tasks", {"plan-task": "none"})
    send.title("Refused")
    send("POST", f"{NAMESPACE}/tables", {"name": "new"})
    send("DELETE", table)
    with site.client(None) as nobody:
        send("GET", table, client=nobody)
    with site.client("far") as far:
        send("GET", table, client=far)
    check("iceberg_catalog", send)


def test_access_tokens_and_activation(site: Site) -> None:
    """A link is redeemed for a profile of client credentials, and those for an access token."""
    send = site.transcript("owner")
    as_json = {"accept": "application/json"}
    new = {"name": "oauth_client", "authentication_type": "OAUTH_CLIENT_CREDENTIALS"}
    made = send.client.post(f"{UNITY}/recipients", json=new).json()
    link = str(httpx.URL(made["tokens"][0]["activation_url"]).raw_path, "ascii")
    send.normalise.places[link.rpartition("/")[2]] = "<code>"
    with site.client(None) as nobody:
        send("GET", link, client=nobody, shows_body=False)
        send("GET", link, headers=as_json, client=nobody)
        profile = send("POST", link, b"", as_json, client=nobody).json()["profile"]
        send("POST", link, b"", as_json, client=nobody)
        send("GET", link, client=nobody, shows_body=False)
        send("GET", "/activate/none", headers=as_json, client=nobody)
        send.title("Access tokens")
        given = f"client_id={profile['clientId']}&client_secret={profile['clientSecret']}&grant_type=client_credentials"
        form = {"content-type": "application/x-www-form-urlencoded"}
        send.normalise.places |= {
            profile["clientId"]: "<client id>",
            profile["clientSecret"]: "<client secret>",
        }
        for path in (f"{SHARING}/oauth/token", f"{ICEBERG}/oauth/tokens"):
            granted = nobody.post(path, content=given.encode(), headers=form).json()
            send.normalise.places[granted["access_token"]] = "<access token>"
            send("POST", path, f"{given}&scope=all".encode(), form, client=nobody)
        send("POST", f"{SHARING}/oauth/token", b"grant_type=password", form, client=nobody)
        send("POST", f"{SHARING}/oauth/token", b"grant_type=client_credentials", form, client=nobody)
        wrong = b"grant_type=client_credentials&client_id=x&client_secret=y"
        send("POST", f"{SHARING}/oauth/token", wrong, form, client=nobody)
    check("activation", send)


def test_pages_and_probes(site: Site) -> None:
    """Status and headers only."""
    send = site.transcript()
    with site.client(None) as nobody:
        for path in ("/", "/portal", "/static/none.css", "/healthz", "/readyz", "/metrics", "/api/docs"):
            send("GET", path, client=nobody, shows_body=False)
        send("GET", "/.well-known/databricks-config", client=nobody)
        send("GET", "/portal/api/status", client=nobody)
    send.title("The portal's API")
    tables = "/portal/api/shares/flights/schemas/lake/tables"
    send("GET", "/portal/api/status", shows_body=False)
    for part in ("about", "versions", "code", "preview?limit=1"):
        send("GET", f"{tables}/people/{part}", shows_body=False)
    send("GET", f"{tables}/none/about")
    check("pages", send)


def test_admin_api(site: Site) -> None:
    send = site.transcript("owner")
    send.title("Shares")
    send("POST", f"{UNITY}/shares", {"name": "admin_share", "comment": "c", "properties": {"k": "v"}})
    send("POST", f"{UNITY}/shares", {"name": "ADMIN_share"})
    send("POST", f"{UNITY}/shares", {})
    table = {"name": "lake.typed", "shared_as": "s.t", "history_data_sharing_status": "ENABLED"}
    added = send(
        "PATCH", f"{UNITY}/shares/admin_share", {"updates": [{"action": "ADD", "data_object": table}]}
    )
    send("PATCH", f"{UNITY}/shares/admin_share", {"comment": "d"}, {"if-match": '"0"'})
    send("PATCH", f"{UNITY}/shares/admin_share", {"comment": "d"}, {"if-match": added.headers["etag"]})
    send("GET", f"{UNITY}/shares/admin_share?include_shared_data=true")
    send("GET", f"{UNITY}/shares?max_results=1", shows_body=False)
    send("GET", f"{UNITY}/shares/none")
    send.title("Recipients")
    new = {"name": "admin_recipient", "ip_access_list": {"allowed_ip_addresses": ["203.0.113.0/24"]}}
    made = send.client.post(f"{UNITY}/recipients", json={"name": "first"}).json()
    code = made["tokens"][0]["activation_url"].rpartition("/")[2]
    send.normalise.places[code] = "<first code>"
    send("POST", f"{UNITY}/recipients", new)
    send("POST", f"{UNITY}/recipients", {"name": "x", "authentication_type": "MAGIC"})
    send(
        "PATCH",
        f"{UNITY}/recipients/admin_recipient",
        {"comment": "c", "properties_kvpairs": {"properties": {"region": "eu"}}},
    )
    send("GET", f"{UNITY}/recipients/admin_recipient")
    send("POST", f"{UNITY}/recipients/admin_recipient/rotate-token", {"existing_token_expire_in_seconds": 0})
    send("GET", f"{UNITY}/public/data_sharing_activation_info/{code}")
    send("GET", f"{UNITY}/public/data_sharing_activation/{code}")
    send("GET", f"{UNITY}/public/data_sharing_activation/{code}")
    send.title("Groups and grants")
    send("POST", f"{PROVIDER}/groups", {"name": "admin_group", "members": ["admin_recipient"]})
    send("PATCH", f"{PROVIDER}/groups/admin_group", {"comment": "c", "remove_members": ["admin_recipient"]})
    send("GET", f"{PROVIDER}/groups")
    grants = [
        {"principal": "admin_recipient", "add": ["SELECT"]},
        {"principal": "group:admin_group", "add": ["SELECT"]},
    ]
    send("PATCH", f"{UNITY}/shares/admin_share/permissions", {"changes": grants})
    send("GET", f"{UNITY}/shares/admin_share/permissions")
    send("GET", f"{UNITY}/recipients/admin_recipient/share-permissions")
    send.title("Federation policies")
    policies = "/api/2.0/data-sharing/recipients/federated/federation-policies"
    send("POST", f"{UNITY}/recipients", {"name": "federated", "authentication_type": "OIDC_FEDERATION"})
    policy = {
        "issuer": "https://issuer.example",
        "subject_claim": "sub",
        "subject": "ann",
        "audiences": ["lake"],
    }
    send("POST", policies, {"name": "main", "oidc_policy": policy})
    send("GET", policies)
    send("GET", f"{policies}/main")
    send("DELETE", f"{policies}/main")
    send.title("Keys of administrators")
    send("POST", f"{PROVIDER}/admin-keys", {"name": "admin_key", "role": "auditor"})
    send("GET", f"{PROVIDER}/admin-keys")
    send("DELETE", f"{PROVIDER}/admin-keys/admin_key")
    send("GET", "/api/2.0/preview/scim/v2/Me")
    send.title("Followed tables")
    send("GET", f"{PROVIDER}/followed-tables")
    send("DELETE", f"{PROVIDER}/followed-tables/none")
    send("POST", f"{PROVIDER}/followed-tables", {"tables": []})
    send.title("As a recipient")
    send("GET", f"{PROVIDER}/recipients/bob/as/shares")
    send(
        "POST",
        f"{PROVIDER}/recipients/bob/as/shares/flights/schemas/lake/tables/typed/query",
        {"limitHint": 1},
    )
    send("GET", f"{PROVIDER}/recipients/none/as/shares")
    send.title("Refused")
    for name in (None, "bob"):
        with site.client(name) as other:
            send("GET", f"{UNITY}/shares", client=other)
    with site.client("auditor") as auditor:
        send("POST", f"{UNITY}/shares", {"name": "no"}, client=auditor)
    with site.client("steward") as steward:
        send("GET", f"{PROVIDER}/admin-keys", client=steward)
    send("POST", f"{UNITY}/shares", b"{")
    send("GET", "/api/nothing")
    send("PUT", f"{UNITY}/shares")
    send.title("Removed")
    send("DELETE", f"{PROVIDER}/groups/admin_group")
    send("POST", f"{PROVIDER}/recipients/admin_recipient/revoke", {})
    send("DELETE", f"{UNITY}/recipients/admin_recipient")
    send("DELETE", f"{UNITY}/shares/admin_share")
    for name in ("first", "federated"):
        send.client.delete(f"{UNITY}/recipients/{name}")
    check("admin_api", send)
