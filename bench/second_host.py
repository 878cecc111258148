"""The first query of a host that has no file index yet, against that after a restart: `python -m bench.second_host`.

A table of 100,000 files is published once; its index is in the state folder of one host and in an S3 store (SeaweedFS).
Each turn starts a server with that state folder, and one with an empty one, which downloads the index, and reads the
whole response of a full query. The goal (issue 18): at most 2 times.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from bench.wide_table import many_files_table
from lakeshare_server.catalog import open_catalog
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables.index import index_path
from tests.builders.server_process import a_host
from tests.builders.sharing import Provider
from tests.integration.s3_server import REGION, running_s3

FILES, TURNS, GOAL = 100_000, 5, 2.0
TABLE = "lake.wide"
OWN, OTHER = "own", "other"


def main() -> int:
    """Prints both medians and their ratio; 1 if the ratio is over the goal."""
    with tempfile.TemporaryDirectory() as name, running_s3(Path(name)) as s3:
        folder = Path(name)
        s3.client().create_bucket(Bucket="lake")
        os.environ |= {"AWS_ACCESS_KEY_ID": s3.admin.access_key, "AWS_SECRET_ACCESS_KEY": s3.admin.secret_key}
        settings = ServerSettings(
            _env_file=None,
            state_dir=folder / OWN,
            database_url=f"sqlite:///{folder / 'state.db'}",
            warehouse="s3://lake/tables",
            s3_endpoint=s3.endpoint,
            s3_region=REGION,
        )
        provider = Provider(settings, open_catalog(f"sqlite:///{folder / 'state.db'}"))
        many_files_table(folder / "table", FILES)
        publication = provider.publish_delta(TABLE, folder / "table")
        own = index_path(settings.index_dir, publication.index_digest)
        provider.share(TABLE, share="wide")
        token = provider.recipient(shares=("wide",))
        seconds: dict[str, list[float]] = {OWN: [], OTHER: []}
        for turn in range(TURNS):
            for host in (OWN, OTHER) if turn % 2 else (OTHER, OWN):
                if host == OTHER:
                    shutil.rmtree(folder / OTHER, ignore_errors=True)
                seconds[host].append(first_query(provider, host, token))
        megabytes = own.stat().st_size / 1e6
    restarted, fresh = (statistics.median(seconds[host]) for host in (OWN, OTHER))
    print(
        f"first full query of {FILES:,} files (an index of {megabytes:.0f} MB): {restarted * 1000:.0f} ms after a "
        f"restart, {fresh * 1000:.0f} ms on a second host: {fresh / restarted:.2f} times (goal: at most {GOAL})"
    )
    return int(fresh / restarted > GOAL)


def first_query(provider: Provider, host: str, token: str) -> float:
    """Starts a host; returns the seconds of its first query."""
    headers = {"Authorization": f"Bearer {token}"}
    with a_host(provider, host) as (_, url):
        began = time.perf_counter()
        query = f"{url}/shares/wide/schemas/lake/tables/wide/query"
        response = httpx.post(query, headers=headers, json={}, timeout=60)
        elapsed_s = time.perf_counter() - began
    if response.status_code != 200 or response.text.count("\n") < FILES:
        raise RuntimeError(response.text[:500])
    return elapsed_s


if __name__ == "__main__":
    sys.exit(main())
