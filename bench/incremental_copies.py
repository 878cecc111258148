"""A day on which 1 % of the objects changed is backed up at least 5 times as fast as rclone copies the same change.

Run: `python -m bench.incremental_copies [--objects 20000] [--turns 5]`. Both begin with everything copied. Ours lists
the whole bucket itself (no report of the store is at hand), compares with the point before, plans and copies; rclone
lists both ends and compares. `rclone --checksum`, which asks for no modification times, is told beside it.
"""

import argparse
import asyncio
import datetime as dt
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import median

from lakeshare_pipelines.backup.async_s3 import AsyncS3
from lakeshare_pipelines.backup.config import Backup, ListingSource
from lakeshare_pipelines.backup.points import format_point_name, get_point_time
from lakeshare_pipelines.backup.run import BackupRun, ensure_copies, ensure_listing, ensure_plan, make_point
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.settings import LakeSettings
from tests.integration.s3_server import REGION, S3Server, running_s3

MUST = 5.0
OBJECTS, TURNS, CHANGED = 20_000, 5, 0.01
OBJECT_BYTES, WORKERS = 4096, 32
TOOLS = ("ours", "rclone", "rclone --checksum")
NEXT_SECOND_S = 0.05


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=OBJECTS)
    parser.add_argument("--turns", type=int, default=TURNS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_s3(Path(folder)) as server:
        os.environ |= {
            "AWS_ACCESS_KEY_ID": server.admin.access_key,
            "AWS_SECRET_ACCESS_KEY": server.admin.secret_key,
            "AWS_REGION": REGION,
        }
        seconds = Lake(Path(folder), server, asked.objects).timed(asked.turns)
    ours, rclone, by_checksum = (median(seconds[tool]) for tool in TOOLS)
    print(
        f"{CHANGED:.0%} of {asked.objects} objects changed: ours {ours:.2f} s, rclone copy {rclone:.2f} s, "
        f"rclone copy --checksum {by_checksum:.2f} s; ours is {rclone / ours:.1f} x rclone copy (must {MUST:.0f}) "
        f"and {by_checksum / ours:.1f} x rclone copy --checksum"
    )
    return 0 if rclone / ours >= MUST else 1


class Lake:
    """A bucket of small objects, a backup of it, and a mirror for each way of rclone."""

    def __init__(self, folder: Path, server: S3Server, objects: int) -> None:
        self.server, self.objects = server, objects
        for bucket in ("lake", "vault", "mirror", "mirror-by-checksum"):
            server.client().create_bucket(Bucket=bucket)
        self.settings = LakeSettings(_env_file=None, state_dir=folder / "state")
        self.backup = Backup(
            name="bench",
            source=self._at("lake"),
            target=self._at("vault"),
            listing=ListingSource(lag_days=0, wait_hours=0),
            in_flight=WORKERS,
        )

    def timed(self, turns: int) -> dict[str, list[float]]:
        """The seconds of each tool, by turns; each turn changes the share of the objects first."""
        self._put(range(self.objects))
        make_point(self._making(), _now(), print, lambda _: None)
        self._rclone("mirror")
        self._rclone("mirror-by-checksum", "--checksum")
        seconds: dict[str, list[float]] = {tool: [] for tool in TOOLS}
        step = round(1 / CHANGED)
        for turn in range(turns):
            self._put(range(turn, self.objects, step))
            making = self._making()
            ways: tuple[Callable[[], None], ...] = (
                partial(self._ours, making),
                partial(self._rclone, "mirror"),
                partial(self._rclone, "mirror-by-checksum", "--checksum"),
            )
            for tool, run in zip(TOOLS, ways, strict=True):
                began = time.perf_counter()
                run()
                seconds[tool].append(time.perf_counter() - began)
            # What the next turn is compared with.
            make_point(making, _now(), print, lambda _: None)
        return seconds

    def _ours(self, making: BackupRun) -> None:
        assert ensure_listing(making, _now()) is not None
        plan = ensure_plan(making)
        record = ensure_copies(making, lambda _: None)
        assert record.failed == 0, record
        assert plan.estimate.objects == record.succeeded == round(self.objects * CHANGED), plan.estimate

    def _making(self) -> BackupRun:
        # A point of a second holds what was written before it.
        day = format_point_name(_now())
        while get_point_time(day) <= self._put_at:
            time.sleep(NEXT_SECOND_S)
            day = format_point_name(_now())
        return BackupRun(self.settings, self.backup, day, "bench")

    def _put(self, numbers: Iterable[int]) -> None:
        async def put() -> None:
            async with AsyncS3(self._at("lake"), WORKERS) as s3:
                body = os.urandom(OBJECT_BYTES)
                keys = [f"raw/part-{number:06}.parquet" for number in numbers]
                answers = await asyncio.gather(*(s3.request("PUT", key, body=body) for key in keys))
                assert all(answer.is_success for answer in answers)

        asyncio.run(put())
        self._put_at = _now()

    def _rclone(self, bucket: str, *options: str) -> None:
        settings = {
            "RCLONE_CONFIG": os.devnull,
            "RCLONE_S3_PROVIDER": "SeaweedFS",
            "RCLONE_S3_ENV_AUTH": "true",
            "RCLONE_S3_ENDPOINT": self.server.endpoint,
            "RCLONE_S3_REGION": REGION,
        }
        flags = ["--transfers", str(WORKERS), "--checkers", str(WORKERS), "--s3-no-check-bucket", *options]
        subprocess.run(
            [Path(sys.executable).with_name("rclone"), "copy", ":s3:lake", f":s3:{bucket}", *flags],
            env={**os.environ, **settings},
            check=True,
        )

    def _at(self, bucket: str) -> StoreAddress:
        return StoreAddress(url=f"s3://{bucket}", endpoint=self.server.endpoint, region=REGION)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


if __name__ == "__main__":
    sys.exit(main())
