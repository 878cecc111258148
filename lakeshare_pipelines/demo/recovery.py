"""The last part of the plot: a backup point is made, two tables are deleted, and brought back from it.

Begun and broken off, the next start finds what is missing and brings it back.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lakeshare_pipelines.backup.declared import Backup, backup_named
from lakeshare_pipelines.backup.making import Making, make_point
from lakeshare_pipelines.backup.points import Points
from lakeshare_pipelines.backup.records import Point
from lakeshare_pipelines.backup.workspace import point_of_this_moment
from lakeshare_pipelines.demo import reader
from lakeshare_pipelines.demo.voice import Voice
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_pipelines.wap.lake import Lake, without_spark
from lakeshare_server.catalog import Catalog, Ledger, Publication

LOST = {"flights.departures": "aviation.flights.departures", "reference.planes": "aviation.reference.planes"}
"""An Iceberg and a Delta table, by their names in the lake and in the share."""


@dataclass(frozen=True)
class Seen:
    """What a recipient sees of a table: the publication's number, the rows as `reader.fingerprint`."""

    version: int
    rows: tuple[int, int]


def bring_back_lost(voice: Voice, settings: LakeSettings, catalog: Catalog) -> None:
    """Restore what an earlier start deleted before it was broken off."""
    ledger = Ledger(catalog)
    found = {table: ledger.latest(table) for table in LOST}
    gone = [
        table for table, publication in found.items() if publication is not None and _is_gone(publication)
    ]
    if not gone:
        return
    backup = backup_named(settings, None)
    point = Points(backup).latest_good()
    if point is None:
        return
    voice.chapter(f"{' and '.join(gone)} are missing since an earlier start: point {point.day} has them")
    _restore(voice, settings, catalog, backup, point, gone)


def lose_and_recover(voice: Voice, settings: LakeSettings, catalog: Catalog, profile: Path) -> list[str]:
    """Make a point, delete tables, restore them; what is wrong afterwards, if anything."""
    backup, lake = backup_named(settings, None), without_spark(settings)
    voice.chapter("A backup point of everything, from a listing made here")
    point = _point(voice, settings, backup)
    before = {shared: _seen(profile, shared) for shared in LOST.values()}
    voice.chapter(f"Somebody deletes {' and '.join(LOST)}: from the catalog and from the disk")
    for table in LOST:
        _delete(lake, _published(Ledger(catalog), table))
    wrong = _read_lost(voice, profile)
    voice.chapter(f"They are restored from point {point.day}")
    _restore(voice, settings, catalog, backup, point, list(LOST))
    return wrong + _compared(voice, profile, before)


def _point(voice: Voice, settings: LakeSettings, backup: Backup) -> Point:
    making = Making(settings, backup, point_of_this_moment(), "demo")
    with voice.working("backup") as say:
        point = make_point(making, datetime.now(UTC), say, lambda _: None)
    for proof in point.verification.tables:
        rows = "" if proof.rows is None else f"{proof.rows:>7} rows"
        voice.says(f"{proof.table.root:34} {proof.table.format:7} {proof.status}, level {proof.level} {rows}")
    voice.says(f"the points are in {backup.target}: `lakeshare backup list`")
    return point


def _restore(
    voice: Voice, settings: LakeSettings, catalog: Catalog, backup: Backup, point: Point, tables: list[str]
) -> None:
    from lakeshare_pipelines.backup.restore.tables import Restores

    with voice.working("restore") as say:
        for table in tables:
            restored = Restores(settings, backup, point).in_place(catalog, table)
            say(f"{table}: {restored.objects} objects put back")


def _published(ledger: Ledger, table: str) -> Publication:
    publication = ledger.latest(table)
    if publication is None:
        raise LookupError(f"{table} was never published")  # the demo published it
    return publication


def _folder(publication: Publication) -> Path:
    return Path(publication.location.removeprefix("file://"))


def _is_gone(publication: Publication) -> bool:
    return not _folder(publication).exists()


def _delete(lake: Lake, publication: Publication) -> None:
    if publication.format == "iceberg":
        publisher = lake.nessie("publisher")
        main = publisher.reference("main").hash
        if publisher.content(publication.table, "main") is not None:
            publisher.drop_table(
                publication.table, "main", main, message=f"Drop {publication.table} by mistake"
            )
    if not _is_gone(publication):
        shutil.rmtree(_folder(publication))


def _seen(profile: Path, shared: str) -> Seen:
    return Seen(reader.version(profile, shared), reader.fingerprint(reader.read(profile, shared)))


def _read_lost(voice: Voice, profile: Path) -> list[str]:
    wrong = []
    for shared in LOST.values():
        try:
            reader.read(profile, shared)
        # The client tells of a missing file with whatever its parts raise.
        except (OSError, ValueError) as error:
            voice.says(f"{shared}: the recipient's read fails ({type(error).__name__})")
        else:
            wrong.append(f"{shared} is deleted and was read all the same")
    return wrong


def _compared(voice: Voice, profile: Path, before: Mapping[str, Seen]) -> list[str]:
    wrong = []
    for shared, was in before.items():
        now = _seen(profile, shared)
        if now.rows == was.rows:
            voice.says(f"{shared:34} publication {now.version:<3} {now.rows[0]:>7} rows, the same as before")
        else:
            wrong.append(f"{shared} had {was.rows[0]} rows before it was lost and has {now.rows[0]} now")
    return wrong
