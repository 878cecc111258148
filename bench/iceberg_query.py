"""A warm full query of an Iceberg table within 10 % of that of a Delta table with the same files and statistics.

Run: `python -m bench.iceberg_query [FILES]`, 100,000 by default. The Delta table's log is written from the lines that
the Iceberg table is answered with; both are published, and asked for by turns, of which the best count. The Iceberg
table is made once, in .lakeshare/bench; that takes a minute.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from urllib.parse import unquote, urlsplit

import httpx

from bench.iceberg_table import SNAPSHOT, told_table
from bench.server.load import Ask
from bench.server.ours import RECIPIENT, SCHEMA, SHARE, table_path
from bench.server.processes import Running, run
from lakeshare_server.catalog import (
    DeclaredShare,
    Ledger,
    NewPublication,
    SharedTable,
    apply_shares,
    open_catalog,
)
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import TableSnapshot, describe_index, read_delta, read_iceberg, write_index
from tests.builders.recipients import Recipients

FILES, PER_MANIFEST = 100_000, 1_000
TURNS, ANSWERS = 7, 5
MOST = 1.1


def main() -> int:
    """Measure, print, and return the exit code."""
    files = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    manifests = max(1, files // PER_MANIFEST)
    metadata = told_table(
        Path(".lakeshare/bench").absolute() / f"iceberg-{files}-{manifests}", files, manifests
    )
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        token = _publish(state, "iceberg", read_iceberg(metadata, SNAPSHOT), metadata)
        with _server(state) as server:
            _write_log(Path(folder) / "delta", server, token)
        _publish(state, "delta", read_delta(str(Path(folder) / "delta")), None)
        with _server(state) as server:
            found = {name: _seconds(server, token, name, files) for name in ("iceberg", "delta")}
            for _ in range(TURNS - 1):
                for name, seconds in found.items():
                    seconds += _seconds(server, token, name, files)
    iceberg, delta = min(found["iceberg"]), min(found["delta"])
    print(
        f"warm full query of {files} files: Iceberg {iceberg * 1000:.0f} ms, Delta {delta * 1000:.0f} ms; "
        f"ratio {iceberg / delta:.2f}, at most {MOST}"
    )
    return 0 if iceberg <= MOST * delta else 1


def _publish(state: Path, name: str, snapshot: TableSnapshot, metadata: str | None) -> str:
    """Publish a table and share all; returns the token of a recipient."""
    settings = ServerSettings(state_dir=state)
    catalog = open_catalog(settings.catalog_url)
    index = write_index(snapshot, settings.index_dir)
    Ledger(catalog).append(
        [
            NewPublication(
                table=f"{SCHEMA}.{name}",
                set_name=SCHEMA,
                format=snapshot.format,
                metadata_location=metadata,
                snapshot_id=snapshot.snapshot_id,
                delta_version=snapshot.version,
                **describe_index(index.header),
                index_digest=index.digest,
                contract_digest="",
                verdicts={},
                run_id=f"bench-{name}",
                partition="all",
            )
        ]
    )
    tables = tuple(SharedTable(SCHEMA, one, f"{SCHEMA}.{one}") for one in ("iceberg", "delta"))
    apply_shares(catalog, [DeclaredShare(SHARE, tables)])
    token = Recipients(catalog).add(f"{RECIPIENT}-{name}", [SHARE])[1]
    catalog.close()
    return token


@contextmanager
def _server(state: Path) -> Iterator[Running]:
    environment = {**os.environ, "LAKESHARE_STATE_DIR": str(state)}
    server = Running(["lakeshare_server", "serve", "--port", "0"], environment, state / "server.log")
    try:
        yield server
    finally:
        server.stop()


def _write_log(location: Path, server: Running, token: str) -> None:
    """The log of a Delta table of the files, with the statistics, that the Iceberg table is answered with."""
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.post(
        f"{server.origin}{server.prefix}{table_path('iceberg')}/query", headers=headers, timeout=300
    )
    lines = [json.loads(line) for line in answer.text.splitlines()]
    actions = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": "00000000-0000-0000-0000-000000000001",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": lines[1]["metaData"]["schemaString"],
                "partitionColumns": [],
                "configuration": {},
            }
        },
    ]
    for line in lines[2:]:
        file = line["file"]
        name = unquote(urlsplit(file["url"]).path).partition("/data/")[2]
        actions.append(
            {
                "add": {
                    "path": f"data/{name}",
                    "partitionValues": {},
                    "size": file["size"],
                    "modificationTime": 0,
                    "dataChange": True,
                    "stats": file["stats"],
                }
            }
        )
    log = location / "_delta_log" / f"{0:020}.json"
    log.parent.mkdir(parents=True)
    log.write_text("".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions))


def _seconds(server: Running, token: str, name: str, files: int) -> list[float]:
    ask = Ask(port=server.port, path=f"{server.prefix}{table_path(name)}/query", token=token, body="{}")
    seen = run(replace(ask, answers=ANSWERS, warm=1))
    if seen.lines_of_one != files + 2:
        raise RuntimeError(f"{name} was answered with {seen.lines_of_one} lines")
    return [median(seen.whole_s)]


if __name__ == "__main__":
    sys.exit(main())
