"""Loading a table through our Iceberg REST door, at least twice as often a second as through Nessie's own.

Run: `python -m bench.iceberg_load_table [COMMITS]`, 20 by default: so many are made to the table. It is in an S3
server (SeaweedFS), because Nessie's REST door takes no `file:` warehouse, and is made through Nessie; our side
publishes the metadata file that Nessie wrote. Each server has one core, the clients another; they are asked by turns.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pyarrow as pa

from bench.server.load import Ask
from bench.server.ours import RECIPIENT, SCHEMA, SHARE
from bench.server.processes import Running, run
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.spark.jars import NESSIE_JAR, ensure_jars, find_java
from lakeshare_server.catalog import (
    DeclaredShare,
    Ledger,
    NewPublication,
    SharedTable,
    apply_shares,
    open_catalog,
)
from lakeshare_server.settings import ICEBERG_PATH, ServerSettings
from lakeshare_server.storage import Stores
from lakeshare_server.tables import describe_index, read_iceberg, write_index
from tests.builders.recipients import Recipients
from tests.integration.s3_server import REGION, S3Server, running_s3

COMMITS, BUCKET = 20, "bench"
TURNS, WINDOW_S, CLIENTS = 5, 2.0, (1, 8)
LEAST = 2.0
START_S = 120
LISTENING = re.compile(r"Listening on: (http://\S+?)\.? ")


@dataclass(frozen=True)
class Door:
    """An Iceberg REST catalog, and what is asked of it: one table."""

    name: str
    ask: Ask


def main() -> int:
    """Measure, print, and return the exit code."""
    commits = int(sys.argv[1]) if len(sys.argv) > 1 else COMMITS
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, running_s3(Path(folder)) as s3:
        os.environ |= {"AWS_ACCESS_KEY_ID": s3.admin.access_key, "AWS_SECRET_ACCESS_KEY": s3.admin.secret_key}
        s3.client().create_bucket(Bucket=BUCKET)
        with _on(cores[:1], _nessie(Path(folder), s3)) as uri:
            nessie, metadata_location, snapshots = _made_in_nessie(uri, s3, commits)
            state = Path(folder) / "state"
            token, environment = _published(state, s3, metadata_location, snapshots), _environment(state, s3)
            with _on(cores[:1], _ours(state, environment)) as server:
                path = f"{ICEBERG_PATH}/v1/shares/{SHARE}/namespaces/{SCHEMA}/tables/orders"
                ours = Door("ours", Ask(port=server.port, path=path, token=token))
                os.sched_setaffinity(0, cores[-1:])
                told = f"{commits} commits, {len(snapshots)} snapshots told"
                met = [_compared(nessie, ours, clients, told) for clients in CLIENTS]
    return 0 if all(met) else 1


def _compared(nessie: Door, ours: Door, clients: int, told: str) -> bool:
    rates: dict[str, list[float]] = {nessie.name: [], ours.name: []}
    for _ in range(TURNS):
        for door in (nessie, ours):
            seen = run(replace(door.ask, clients=clients, warm=20, window_s=WINDOW_S))
            rates[door.name].append(seen.answers / seen.elapsed_s)
    ratio = median(mine / other for mine, other in zip(rates["ours"], rates["nessie"], strict=True))
    print(
        f"load table ({told}), {clients} clients: ours {median(rates['ours']):.0f}/s, Nessie "
        f"{median(rates['nessie']):.0f}/s; {ratio:.1f} times as often, at least {LEAST}"
    )
    return ratio >= LEAST


@contextmanager
def _on(cores: list[int], server: Any) -> Iterator[Any]:
    """A server whose threads all stay on these cores: they are what it was started with."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    with server as running:
        os.sched_setaffinity(0, before)
        yield running


@contextmanager
def _nessie(folder: Path, s3: S3Server) -> Iterator[str]:
    """Nessie with its Iceberg REST catalog over the bucket; yields the catalog's URI."""
    settings = LakeSettings(state_dir=folder / "nessie-state")
    java, jar = find_java("nessie", settings), ensure_jars(settings, [NESSIE_JAR])[NESSIE_JAR]
    s3_options = "nessie.catalog.service.s3.default-options"
    properties = {
        "nessie.version.store.type": "IN_MEMORY",
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": "0",
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": "0",
        "quarkus.otel.sdk.disabled": "true",
        "quarkus.log.file.enable": "false",
        "quarkus.http.access-log.enabled": "false",
        "nessie.catalog.default-warehouse": BUCKET,
        f"nessie.catalog.warehouses.{BUCKET}.location": f"s3://{BUCKET}/warehouse",
        f"{s3_options}.endpoint": s3.endpoint,
        f"{s3_options}.region": REGION,
        f"{s3_options}.path-style-access": "true",
        f"{s3_options}.access-key": "urn:nessie-secret:quarkus:bench-keys",
        "bench-keys.name": s3.admin.access_key,
        "bench-keys.secret": s3.admin.secret_key,
    }
    log = folder / "nessie.log"
    command = [str(java.binary), "-Xmx1g", *(f"-D{name}={value}" for name, value in properties.items())]
    with (
        log.open("wb") as said,
        subprocess.Popen(
            [*command, "-jar", str(jar)], stdout=said, stderr=subprocess.STDOUT, cwd=folder
        ) as process,
    ):
        try:
            yield f"{_address(process, log)}/iceberg"
        finally:
            process.terminate()


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        found = LISTENING.search(log.read_text(errors="replace"))
        if found:
            return found[1]
        time.sleep(0.1)
    raise RuntimeError(f"Nessie did not start: {log.read_text(errors='replace')[-2000:]}")


def _made_in_nessie(uri: str, s3: S3Server, commits: int) -> tuple[Door, str, list[int]]:
    """What is asked of Nessie, the metadata file that it wrote, and the ids of the snapshots that it answers with."""
    from pyiceberg.catalog.rest import RestCatalog

    keys = {
        "s3.endpoint": s3.endpoint,
        "s3.region": REGION,
        "s3.access-key-id": s3.admin.access_key,
        "s3.secret-access-key": s3.admin.secret_key,
    }
    # Without it Nessie has each request of this client signed, for which PyIceberg needs another library.
    catalog = RestCatalog(
        "nessie", uri=uri, warehouse=BUCKET, **keys, **{"header.X-Iceberg-Access-Delegation": ""}
    )
    catalog.create_namespace(SCHEMA)
    rows = pa.table({f"column_{number}": pa.array([number], pa.int64()) for number in range(10)})
    table = catalog.create_table(f"{SCHEMA}.orders", rows.schema)
    for _ in range(commits):
        table.append(rows)
    config = httpx.get(f"{uri}/v1/config", params={"warehouse": BUCKET}).raise_for_status().json()
    prefix = {**config.get("defaults", {}), **config.get("overrides", {})}["prefix"]
    address = urlsplit(uri)
    path = f"{address.path}/v1/{quote(prefix, safe='%')}/namespaces/{SCHEMA}/tables/orders"
    content = httpx.get(f"{uri.removesuffix('/iceberg')}/api/v2/trees/main/contents/{SCHEMA}.orders")
    location = content.raise_for_status().json()["content"]["metadataLocation"]
    told = [one.snapshot_id for one in catalog.load_table(f"{SCHEMA}.orders").snapshots()]
    return Door("nessie", Ask(port=address.port or 80, path=path)), location, told


def _environment(state: Path, s3: S3Server) -> dict[str, str]:
    return {
        **os.environ,
        "LAKESHARE_STATE_DIR": str(state),
        "LAKESHARE_S3_ENDPOINT": s3.endpoint,
        "LAKESHARE_S3_REGION": REGION,
    }


def _published(state: Path, s3: S3Server, metadata_location: str, snapshots: list[int]) -> str:
    """Publish the snapshots that Nessie answers with, and share them all; returns a recipient's token."""
    settings = ServerSettings(state_dir=state, s3_endpoint=s3.endpoint, s3_region=REGION)
    catalog, stores = open_catalog(settings.catalog_url), Stores(settings)
    for place, snapshot_id in enumerate(snapshots):
        snapshot = read_iceberg(metadata_location, snapshot_id, settings.vectors_dir, stores)
        index = write_index(snapshot, settings.index_dir)
        new = NewPublication(
            table=f"{SCHEMA}.orders",
            set_name=SCHEMA,
            format="iceberg",
            metadata_location=metadata_location,
            snapshot_id=snapshot_id,
            **describe_index(index.header),
            index_digest=index.digest,
            contract_digest="",
            verdicts={},
            run_id=f"bench-{place}",
            partition="all",
        )
        Ledger(catalog).append([new])
    shared = SharedTable(SCHEMA, "orders", f"{SCHEMA}.orders", history=True)
    apply_shares(catalog, [DeclaredShare(SHARE, (shared,))])
    token = Recipients(catalog).add(RECIPIENT, [SHARE])[1]
    catalog.close()
    return token


@contextmanager
def _ours(state: Path, environment: dict[str, str]) -> Iterator[Running]:
    server = Running(["lakeshare_server", "serve", "--port", "0"], environment, state / "server.log")
    try:
        yield server
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
