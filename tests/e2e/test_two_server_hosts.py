"""Two server hosts on one database and one store: requests may alternate between them, and hosts may join and leave.

Each has a state folder of its own. That changes reach both within a second: tests/security/test_within_one_second.py.
"""

import itertools
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import delta_sharing
import httpx
import pandas as pd
import pytest
from deltalake import write_deltalake
from sqlalchemy import func, select

from lakeshare_server.catalog.audit import verify
from lakeshare_server.catalog.models import AuditRow
from lakeshare_server.storage import Stores
from tests.builders.credentials import OAUTH, a_recipient, ask_token
from tests.builders.iceberg_rest import door_url, rest_catalog
from tests.builders.lake_tables import IcebergTable, some_rows
from tests.builders.server_process import a_host
from tests.builders.sharing import Provider, Running, a_provider, files, lines
from tests.builders.waiting import wait_until
from tests.integration.postgres_server import PostgresServer
from tests.integration.s3_server import REGION, S3Server

DELTA, ICEBERG = (f"/shares/flights/schemas/lake/tables/{name}" for name in ("delta", "iceberg"))
PLAN = "/v1/shares/flights/namespaces/lake/tables/iceberg"
ASYNC = {"delta-sharing-capabilities": "asyncquery=true"}
# So that responses have pages.
ONE_FILE = {"LAKESHARE_PAGE_FILES": "1"}
PATIENCE_S = 60
PAUSE_S = 0.02


@dataclass
class Hosts:
    """The hosts of one server by name; requests are for the next one in turn."""

    provider: Provider
    urls: dict[str, str] = field(default_factory=dict)
    turn: Iterator[int] = field(default_factory=itertools.count)
    _running: dict[str, tuple[ExitStack, "subprocess.Popen[str]"]] = field(default_factory=dict)

    def join(self, name: str) -> str:
        stack = ExitStack()
        process, url = stack.enter_context(a_host(self.provider, name, environment=ONE_FILE))
        self._running[name], self.urls[name] = (stack, process), url
        return url

    def leave(self, name: str) -> None:
        """Stop a host, which ends what it has begun; clients learn of it by their own errors of connection."""
        stack, process = self._running.pop(name)
        del self.urls[name]
        with stack:
            process.terminate()
            # uvicorn ends by the signal once all has been answered.
            assert process.wait(PATIENCE_S) == -signal.SIGTERM

    def running(self) -> Running:
        urls = list(self.urls.values())
        return Running(urls[next(self.turn) % len(urls)], self.provider.settings.state_dir)

    def post(self, path: str, token: str, body: Any = None, **options: Any) -> httpx.Response:
        with self.running().client(token) as client:
            return client.post(path, json=body or {}, **options)

    def get(self, path: str, token: str, **options: Any) -> httpx.Response:
        with self.running().client(token) as client:
            return client.get(path, **options)


@pytest.fixture(scope="module")
def provider(
    postgres: PostgresServer, s3: S3Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Provider]:
    """Shares a Delta and an Iceberg table in a bucket, each with three files and two publications."""
    bucket = f"hosts-{uuid4().hex[:8]}"
    s3.client().create_bucket(Bucket=bucket)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", s3.admin.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", s3.admin.secret_key)
        store = {"s3_endpoint": s3.endpoint, "s3_region": REGION, "warehouse": f"s3://{bucket}/lake"}
        folder = tmp_path_factory.mktemp("hosts")
        provider = a_provider(folder, database_url=postgres.new_database(), **store)
        options = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": REGION}
        location = f"s3://{bucket}/lake/delta"
        for mode in ("append", "overwrite"):
            write_deltalake(location, some_rows(), mode=mode, partition_by=["day"], storage_options=options)
            provider.publish_delta("lake.delta", location)
        at_s3 = {"s3.endpoint": s3.endpoint, "s3.region": REGION}
        made = IcebergTable(f"s3://{bucket}/lake/iceberg", some_rows().schema, **at_s3)
        for rows in (some_rows(days=1), some_rows().slice(4)):
            provider.publish_iceberg("lake.iceberg", made.append(rows))
        provider.share("lake.delta", "lake.iceberg", history=True)
        yield provider


@pytest.fixture(scope="module")
def hosts(provider: Provider) -> Iterator[Hosts]:
    hosts = Hosts(provider)
    with ThreadPoolExecutor() as pool:
        list(pool.map(hosts.join, ("host 1", "host 2")))
    yield hosts
    for name in list(hosts.urls):
        hosts.leave(name)


def test_what_began_at_one_host_goes_on_at_the_other(hosts: Hosts) -> None:
    token = hosts.provider.recipient("pages")
    listed, page = [], hosts.get("/shares/flights/all-tables?maxResults=1", token).json()
    while page["items"]:
        listed += [table["name"] for table in page["items"]]
        if not (after := page.get("nextPageToken")):
            break
        page = hosts.get(
            "/shares/flights/all-tables", token, params={"maxResults": 1, "pageToken": after}
        ).json()
    assert listed == ["delta", "iceberg"]

    for table in (DELTA, ICEBERG):
        whole = hosts.post(f"{table}/query", token)
        assert len({file["id"] for file in files(whole)}) == 3
        body, paged = {"maxFiles": 1, "includeRefreshToken": True}, []
        answer = hosts.post(f"{table}/query", token, body)
        refresh = lines(answer)[-1]["endStreamAction"]["refreshToken"]
        while True:
            paged += files(answer)
            after = lines(answer)[-1]["endStreamAction"].get("nextPageToken")
            if not after:
                break
            answer = hosts.post(f"{table}/query", token, {"maxFiles": 1, "pageToken": after})
        assert [file["id"] for file in paged] == [file["id"] for file in files(whole)]
        assert {httpx.get(file["url"]).status_code for file in paged} == {200}
        again = hosts.post(f"{table}/query", token, {"refreshToken": refresh, "includeRefreshToken": True})
        assert [file["id"] for file in files(again)] == [file["id"] for file in files(whole)]


def test_an_access_token_of_one_host_is_taken_by_the_other(hosts: Hosts) -> None:
    known = a_recipient(hosts.provider, "oauth", OAUTH)
    token = ask_token(hosts.running(), known).json()["access_token"]
    assert [hosts.get("/shares", token).status_code for _ in range(2)] == [200, 200]


def test_a_query_that_was_submitted_at_one_host_is_fetched_at_the_other(hosts: Hosts) -> None:
    token = hosts.provider.recipient("later")
    submitted = hosts.post(f"{ICEBERG}/query", token, {"idempotencyKey": str(uuid4())}, headers=ASYNC)
    query = lines(submitted)[0]["queryStatus"]["queryId"]

    def fetched() -> httpx.Response:
        return hosts.post(f"{ICEBERG}/queries/{query}", token, headers=ASYNC)

    for _ in range(2):
        wait_until(lambda: "queryStatus" not in lines(fetched())[0])
        assert len(files(fetched())) == 3


def test_a_scan_that_was_planned_at_one_host_goes_on_at_the_other(hosts: Hosts) -> None:
    token = hosts.provider.recipient("scans")

    def post(path: str, body: Any) -> Any:
        url = f"{door_url(hosts.running())}{PLAN}/{path}"
        answer = httpx.post(url, json=body, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    page = post("plan", {})
    tasks = page["file-scan-tasks"]
    while "plan-tasks" in page:
        page = post("tasks", {"plan-task": page["plan-tasks"][0]})
        tasks += page["file-scan-tasks"]
    assert len({task["data-file"]["file-path"] for task in tasks}) == 3


def test_official_clients_read_the_same_rows_from_each_host(hosts: Hosts) -> None:
    token, read = hosts.provider.recipient("readers"), list[pd.DataFrame]()
    for _ in range(2):
        for name, options in (("delta", {}), ("delta", {"use_delta_format": True}), ("iceberg", {})):
            profile = hosts.running().profile(token)
            read.append(delta_sharing.load_as_pandas(f"{profile}#flights.lake.{name}", **options))
    for _ in range(2):
        table = rest_catalog(hosts.running(), token).load_table("lake.iceberg")
        read.append(table.scan().to_arrow().to_pandas(date_as_object=True))
    wanted = some_rows().to_pandas(date_as_object=True)
    for found in read:
        found = found.sort_values("distance", ignore_index=True)[list(wanted.columns)]
        pd.testing.assert_frame_equal(found, wanted, check_dtype=False)


@dataclass
class Reader:
    """Requests in a loop, each at the next address; an address that refuses the connection is passed over."""

    token: str
    addresses: list[str]
    statuses: list[int] = field(default_factory=list)
    by_address: dict[str, int] = field(default_factory=dict)
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        for number in itertools.count():
            # Without a pause they would take the processor from the host that starts.
            if self.is_over.wait(PAUSE_S):
                return
            url = self.addresses[number % len(self.addresses)]
            try:
                with Running(url, Path()).client(self.token) as client:
                    answer = client.post(f"{(DELTA, ICEBERG)[number % 2]}/query", json={})
            except httpx.TransportError:
                continue
            self.statuses.append(answer.status_code)
            assert len(files(answer)) == 3
            self.by_address[url] = self.by_address.get(url, 0) + 1


def test_hosts_join_and_leave_under_load_and_the_audit_chain_is_whole(hosts: Hosts) -> None:
    """Last in this file: it ends with all hosts stopped."""
    token, addresses = hosts.provider.recipient("load"), [hosts.urls["host 1"]]
    readers = [Reader(token, addresses) for _ in range(3)]
    threads = [threading.Thread(target=reader.run) for reader in readers]

    def wait_for_requests_at(url: str) -> None:
        def count() -> int:
            return sum(reader.by_address.get(url, 0) for reader in readers)

        before = count()
        wait_until(lambda: count() >= before + 10)

    for thread in threads:
        thread.start()
    try:
        wait_for_requests_at(hosts.urls["host 1"])
        addresses.append(hosts.urls["host 2"])
        wait_for_requests_at(hosts.urls["host 2"])
        hosts.leave("host 1")
        wait_for_requests_at(hosts.urls["host 2"])
        # A host that joins now has to build all indexes, and gets one that is damaged.
        stores, shared = Stores(hosts.provider.settings), f"{hosts.provider.settings.shared_root}/index"
        stores.write(next(iter(stores.list(shared))).location, b"damaged")
        for index in list(stores.list(shared))[1:]:
            stores.delete(index.location)
        addresses[0] = hosts.join("host 3")
        wait_for_requests_at(hosts.urls["host 3"])
    finally:
        for reader in readers:
            reader.is_over.set()
        for thread in threads:
            thread.join()
    assert {status for reader in readers for status in reader.statuses} == {200}
    for name in ("host 2", "host 3"):
        hosts.leave(name)

    catalog = hosts.provider.catalog
    assert verify(catalog).findings == []
    with catalog.reading() as session:
        queries = select(func.count()).where(AuditRow.recipient == "load", AuditRow.action == "query_table")
        assert session.scalar(queries) >= sum(len(reader.statuses) for reader in readers)
