"""Drills: a table of the newest good point, drawn by lot, restored to scratch, opened, counted and compared.

What a backup is worth is known only when somebody restored from it; the record says how long that took.
"""

import datetime as dt
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import md5, sha256
from pathlib import Path
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import GOOD, Point, TableProof
from lakeshare_pipelines.backup.restore.chosen import point_of
from lakeshare_pipelines.backup.restore.elsewhere import brought, new_places
from lakeshare_pipelines.backup.restore.records import RestoreRecord
from lakeshare_pipelines.backup.restore.tables import Restores
from lakeshare_pipelines.backup.restore.work import Say, Work, unsaid
from lakeshare_pipelines.backup.stores import StoreAddress
from lakeshare_pipelines.errors import BackupError
from lakeshare_pipelines.settings import LakeSettings

COMPARED = 10_000
"""So many files are compared with what was backed up, drawn by lot; of smaller tables all."""
BLOCK_BYTES = 1 << 20
MD5_HEX = 32


class DrillRecord(BaseModel):
    """What a drill found; kept beside the point."""

    model_config = ConfigDict(frozen=True)

    backup: str
    day: str
    table: str
    passed: bool
    reasons: tuple[str, ...] = ()
    """Sentences: what failed, with the object's name."""
    started_at: dt.datetime
    rows: int | None = None
    files: int = 0
    compared: int = 0
    """Files whose content was compared with the checksum of the backup."""
    objects: int = 0
    size_bytes: int = 0
    rto_s: float
    """From the decision to restore to a table that is open and compared."""
    rpo_s: float
    """How old the state is that one would have got."""
    seed: str


def run_drill(
    backup: Backup, points: Points, settings: LakeSettings, seed: str, say: Say = unsaid
) -> DrillRecord:
    """Drill one table; the same seed draws the same table of the same point.

    A table that does not come back is a drill that failed, not an error.

    Raises:
        BackupError: there is no good point, or it has no good table.
    """
    random, started = Random(seed), dt.datetime.now(dt.UTC)  # noqa: S311  a lot, no secret
    point = point_of(points, None, say)
    proof = drawn(backup, point, random)
    say(f"drill of point {point.day}: table {proof.table.root}")
    began = time.monotonic()
    reasons: list[str] = []
    restored, compared = None, 0
    with _scratch(settings, backup) as folder:
        try:
            place = StoreAddress(url=str(folder / "table"))
            work, restored = Restores(settings, backup, point, say).work_elsewhere(proof.table.root, place)
            compared, reasons = _differences(work, random)
        except BackupError as error:
            reasons.append(str(error))
    record = DrillRecord(
        backup=backup.name,
        day=point.day,
        table=proof.table.root,
        passed=not reasons,
        reasons=tuple(reasons),
        started_at=started,
        compared=compared,
        rto_s=time.monotonic() - began,
        rpo_s=max(0.0, (started - point.as_of).total_seconds()),
        seed=seed,
        **_told(restored),
    )
    name = f"{started:%Y-%m-%dT%H%M%S.%fZ}"
    points.store.put(
        f"{points.folder(point.day)}drills/{name}.json", record.model_dump_json(indent=1).encode()
    )
    return record


def drawn(backup: Backup, point: Point, random: Random) -> TableProof:
    """A table by lot, by the weights of the backup.

    Raises:
        BackupError: the point has no good table, or all weigh nothing.
    """
    good = [proof for proof in point.verification.tables if proof.status in GOOD]
    weights = [backup.drill_weights.get(proof.table.root, 1.0) for proof in good]
    if not any(weight > 0 for weight in weights):
        raise BackupError(
            f"point {point.day}", "it has no table to drill", "Back up tables, or correct `drill_weights`."
        )
    return random.choices(good, [max(weight, 0.0) for weight in weights])[0]


@contextmanager
def _scratch(settings: LakeSettings, backup: Backup) -> Iterator[Path]:
    """A folder of one drill, gone afterwards."""
    above = settings.state_dir / "drills" / backup.name
    above.mkdir(parents=True, exist_ok=True)
    folder = above / dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%f")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _differences(work: Work, random: Random) -> tuple[int, list[str]]:
    """How many restored files were compared with what was backed up, and sentences about those that differ."""
    rows = brought(work).rows.select(["bucket", "key", "etag", "stored_etag", "checksum"]).to_pylist()
    if len(rows) > COMPARED:
        rows = random.sample(rows, COMPARED)
    goes = new_places(work)
    compared, wrong = 0, []
    for row in rows:
        wanted = _wanted(row, work.backup.source.kind)
        if wanted is not None:
            compared += 1
            _, key = goes(row["bucket"], row["key"])
            if _digest(Path(work.to.url) / key, wanted[0]) != wanted[1]:
                wrong.append(f"{row['key']}: what was restored is not what was backed up.")
    return compared, wrong


def _wanted(row: dict[str, Any], source: str) -> tuple[str, str] | None:
    """Algorithm and digest of what was backed up, where something tells them.

    The ETag of an S3 object is its MD5, of one uploaded in one part the MD5 of that, but where a key of KMS encrypts
    it: then that of a copy is another.
    """
    kind, _, digest = (row["checksum"] or "").partition(":")
    if kind == "sha256":
        return kind, digest
    etag, _, parts = (row["etag"] or "").partition("-")
    if source != "s3" or row["etag"] != row["stored_etag"] or len(etag) != MD5_HEX or parts not in ("", "1"):
        return None
    return ("md5 of md5" if parts else "md5", etag)


def _digest(path: Path, kind: str) -> str:
    digest = sha256() if kind == "sha256" else md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    if kind == "md5 of md5":
        digest = md5(digest.digest(), usedforsecurity=False)
    return digest.hexdigest()


def _told(restored: RestoreRecord | None) -> dict[str, Any]:
    if restored is None:
        return {}
    return {
        "rows": restored.rows,
        "files": restored.files,
        "objects": restored.objects,
        "size_bytes": restored.size_bytes,
    }
