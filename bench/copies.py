"""The engine `local` copies many small objects at least 0.8 times as fast as s5cmd, and 1.3 times as fast as rclone.

Run: `python -m bench.copies [--objects 5000] [--turns 5] [--delay-ms 50]`. All copy inside one SeaweedFS, by turns,
each with the keys it is to copy at hand; figures are medians. Ours has its probes, ledger and report in its time. A
second round has a line of 50 ms between all of them and the server; a third copies an object above the limit by parts,
which s5cmd cannot.
"""

import argparse
import asyncio
import datetime as dt
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from lakeshare_pipelines.backup.async_s3 import AsyncS3
from lakeshare_pipelines.backup.copy.engine import CopyTask
from lakeshare_pipelines.backup.copy.local import LocalEngine
from lakeshare_pipelines.backup.stores import StoreAddress
from tests.builders.backup_copies import a_plan
from tests.builders.slow_line import slow_line
from tests.integration.s3_server import REGION, S3Server, running_s3

MUST_S5CMD, MUST_RCLONE = 0.8, 1.3
OBJECT_BYTES, WORKERS = 4096, 32
MIB = 1024**2
LARGE_BYTES, LIMIT_BYTES = 256 * MIB, 64 * MIB


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, default=50.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_s3(Path(folder)) as server:
        os.environ |= {
            "AWS_ACCESS_KEY_ID": server.admin.access_key,
            "AWS_SECRET_ACCESS_KEY": server.admin.secret_key,
            "AWS_REGION": REGION,
        }
        bench = Bench(Path(folder), server, asked.objects)
        is_fast = bench.small(asked.turns, "no delay", server.endpoint, in_flight=WORKERS)
        port = urlsplit(server.endpoint).port or 0
        with slow_line(Path(folder), port, asked.delay_ms) as slow:
            for in_flight in (64, 256):
                name = f"{asked.delay_ms:.0f} ms of line, {in_flight} in flight"
                bench.small(1, name, f"http://localhost:{slow}", in_flight=in_flight)
        bench.large()
    return 0 if is_fast else 1


class Bench:
    """One server with a bucket of small objects, and one for copies."""

    def __init__(self, folder: Path, server: S3Server, objects: int) -> None:
        self.folder, self.server, self.objects, self._rounds = folder, server, objects, 0
        client = server.client()
        for bucket in ("lake", "vault"):
            client.create_bucket(Bucket=bucket)
        asyncio.run(self._fill())

    def small(self, turns: int, name: str, endpoint: str, in_flight: int) -> bool:
        """All small objects, by each tool; whether ours is as fast as it must be."""
        tools: dict[str, Callable[[str, str], None]] = {
            "ours": lambda where, prefix: self._ours(where, prefix, in_flight),
            "s5cmd": self._s5cmd,
            "rclone": self._rclone,
        }
        seconds: dict[str, list[float]] = {tool: [] for tool in tools}
        busy_ms: dict[str, list[float]] = {tool: [] for tool in tools}
        for _ in range(turns):
            for tool, copy in tools.items():
                self._rounds += 1
                prefix = f"{tool}-{self._rounds}/"
                self._prepare(prefix)
                began, busy = time.perf_counter(), _busy_s()
                copy(endpoint, prefix)
                seconds[tool].append(time.perf_counter() - began)
                busy_ms[tool].append((_busy_s() - busy) * 1000 / self.objects)
                self._require_all(prefix)
        ours, s5cmd, rclone = (median(seconds[tool]) for tool in tools)
        print(
            f"{self.objects} x {OBJECT_BYTES} B on SeaweedFS, {name}: ours {self.objects / ours:.0f}/s, "
            f"s5cmd ({WORKERS} workers) {self.objects / s5cmd:.0f}/s, "
            f"rclone ({WORKERS} transfers) {self.objects / rclone:.0f}/s; "
            f"ours is {s5cmd / ours:.2f} x s5cmd (must {MUST_S5CMD}) "
            f"and {rclone / ours:.2f} x rclone (must {MUST_RCLONE}); of the processor, ms an object: "
            + ", ".join(f"{tool} {median(of):.2f}" for tool, of in busy_ms.items()),
            flush=True,
        )
        return s5cmd / ours >= MUST_S5CMD and rclone / ours >= MUST_RCLONE

    def large(self) -> None:
        """One object above the limit, by parts."""
        self.server.client().put_object(Bucket="lake", Key="large/one", Body=os.urandom(LARGE_BYTES))
        self._prepare("parts/", "s3://lake/large/")
        task = self._task(self.server.endpoint, "parts/", WORKERS, LIMIT_BYTES)
        began = time.perf_counter()
        record = LocalEngine().copy(task, lambda _: None)
        seconds = time.perf_counter() - began
        assert record.succeeded == 1, record
        print(f"{LARGE_BYTES / MIB:.0f} MiB by parts: {LARGE_BYTES / MIB / seconds:.0f} MiB/s", flush=True)

    def _ours(self, endpoint: str, prefix: str, in_flight: int) -> None:
        record = LocalEngine().copy(self._task(endpoint, prefix, in_flight), lambda _: None)
        assert record.succeeded == self.objects, record

    def _task(self, endpoint: str, prefix: str, in_flight: int, limit_bytes: int = 5 * 1024**3) -> CopyTask:
        name = prefix.strip("/")
        return CopyTask(
            source=self._at(endpoint, "lake"),
            target=self._at(endpoint, "vault"),
            plan=self.folder / f"plan-{name}",
            done=self.folder / f"done-{name}",
            work_prefix=f"_lakeshare/{prefix}",
            as_of=dt.datetime.now(dt.UTC),
            copy_limit_bytes=limit_bytes,
            in_flight=in_flight,
        )

    def _prepare(self, prefix: str, source: str = "s3://lake/t/") -> None:
        """What each tool is told to copy."""
        name = prefix.strip("/")
        lake = self._at(self.server.endpoint, "lake").model_copy(update={"url": source})
        keys = a_plan(self.folder / f"plan-{name}", lake, stored=prefix)
        commands = "".join(f"cp s3://lake/{key} s3://vault/{prefix}{key}\n" for key in keys)
        (self.folder / f"commands-{name}").write_text(commands)
        (self.folder / f"names-{name}").write_text("".join(f"{key}\n" for key in keys))

    def _s5cmd(self, endpoint: str, prefix: str) -> None:
        commands = self.folder / f"commands-{prefix.strip('/')}"
        tool = Path(sys.executable).with_name("s5cmd")
        _run([tool, "--endpoint-url", endpoint, "--numworkers", WORKERS, "--log", "error", "run", commands])

    def _rclone(self, endpoint: str, prefix: str) -> None:
        names = self.folder / f"names-{prefix.strip('/')}"
        settings = {
            "RCLONE_CONFIG": os.devnull,
            "RCLONE_S3_PROVIDER": "SeaweedFS",
            "RCLONE_S3_ENV_AUTH": "true",
            "RCLONE_S3_ENDPOINT": endpoint,
            "RCLONE_S3_REGION": REGION,
        }
        tool = Path(sys.executable).with_name("rclone")
        flags = ["--transfers", WORKERS, "--checkers", WORKERS, "--files-from", names, "--no-traverse"]
        flags += ["--s3-no-check-bucket", "--no-check-dest"]
        _run([tool, "copy", ":s3:lake", f":s3:vault/{prefix.strip('/')}", *flags], settings)

    def _require_all(self, prefix: str) -> None:
        pages = self.server.client().get_paginator("list_objects_v2").paginate(Bucket="vault", Prefix=prefix)
        found = sum(page["KeyCount"] for page in pages)
        assert found == self.objects, f"{prefix}: {found} of {self.objects} objects are there"

    async def _fill(self) -> None:
        async with AsyncS3(self._at(self.server.endpoint, "lake"), WORKERS) as s3:
            body = os.urandom(OBJECT_BYTES)
            keys = [f"t/part-{number:05}.parquet" for number in range(self.objects)]
            answers = await asyncio.gather(*(s3.request("PUT", key, body=body) for key in keys))
            assert all(answer.is_success for answer in answers)

    def _at(self, endpoint: str, bucket: str) -> StoreAddress:
        return StoreAddress(url=f"s3://{bucket}", endpoint=endpoint, region=REGION)


def _busy_s() -> float:
    """Of the processor, by this process and those it has waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _run(command: list[object], settings: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **(settings or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    sys.exit(main())
