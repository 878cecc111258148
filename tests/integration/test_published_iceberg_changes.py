"""Changes of Iceberg tables through the pipelines: recorded with each publication, before main moves, crash or not."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import SparkError
from lakeshare_pipelines.share import publication
from lakeshare_pipelines.share import publication as abandoned_changes
from lakeshare_pipelines.share.publication import repair, rollback
from lakeshare_pipelines.wap.iceberg import CHANGES_FOLDER, IcebergStaging
from lakeshare_pipelines.wap.staged import Lake, open_lake_without_spark
from lakeshare_server.catalog import Catalog, DeclaredShare, Ledger, Publication, SharedTable, apply_shares
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables.delta.changes import Segment
from lakeshare_server.tables.iceberg.changes import change_files_of
from lakeshare_server.tables.index import index_path
from tests.builders.applied_changes import applied
from tests.builders.canonical import Rows, same_rows
from tests.builders.protocol_reader import ProtocolReader, refusal
from tests.builders.recipients import Recipients
from tests.builders.sets import a_contract, a_delivery, an_order, green, orders, staged_without_reading
from tests.builders.sharing import Provider, a_server
from tests.builders.spark_iceberg import frame_rows

MONDAY, TUESDAY = "2024-01-01", "2024-01-02"


class Killed(Exception):
    """Stands for a run that ended here."""


class Walk:
    """A set that is published several times, and what Spark read of main after each time."""

    def __init__(self, lake: Lake, catalog: Catalog, contract: SetContract) -> None:
        self.lake, self.catalog, self.contract = lake, catalog, contract
        self.ledger = Ledger(catalog)
        self.tables = [table.name for table in contract.tables]
        self.read: dict[str, list[Rows]] = {name: [] for name in self.tables}
        self.other_host: Path | None = None
        """The state folder of a server on another host; the pipelines' own by default."""

    def run(self, day: str, rows: list[dict[str, object]]) -> None:
        """Publish a day; neither its reading nor its audit is the subject."""
        a_delivery(self.lake.settings, self.contract, day, rows)
        staged = staged_without_reading(self.lake, self.contract, day, rows)
        verdicts = green(self.contract, staged)
        publication.publish_or_replay(self.lake, self.catalog, self.contract, staged, verdicts)
        self.look()

    def run_until_killed(self, day: str, rows: list[dict[str, object]]) -> None:
        """A run that ends with `Killed`, where the test put it."""
        with pytest.raises(Killed):
            self.run(day, rows)

    def look(self) -> None:
        for name in self.tables:
            self.read[name].append(frame_rows(self.lake.table(name)))

    def versions(self) -> list[int]:
        """The newest version of each table in the ledger."""
        published = [self.ledger.latest(name) for name in self.tables]
        return [one.version for one in published if one is not None]

    def folders(self, short_name: str = "orders") -> list[str]:
        latest = self.ledger.latest(self.contract.table(short_name).name)
        assert latest is not None
        root = f"{latest.location}/{CHANGES_FOLDER}"
        names = self.lake.stores.folders(root, missing_ok=True)
        return [folder for name in names if self.lake.stores.written_between(folder := f"{root}/{name}")]

    @contextmanager
    def reader(self, short_name: str) -> Iterator[ProtocolReader]:
        mine = self.lake.settings
        stores = {"s3_endpoint": mine.s3_endpoint, "s3_region": mine.s3_region, "warehouse": mine.warehouse}
        state = self.other_host or mine.state_dir
        url = {"database_url": mine.catalog_url}
        settings = ServerSettings(_env_file=None, state_dir=state, port=0, **stores, **url)
        name = self.contract.table(short_name).name
        apply_shares(self.catalog, [DeclaredShare("walk", (SharedTable("s", "t", name, history=True),))])
        token = Recipients(self.catalog).add(f"r-{uuid4()}", ("walk",))[1]
        with (
            a_server(Provider(settings, self.catalog)) as running,
            running.client(token) as client,
            httpx.Client(timeout=30) as data,
        ):
            yield ProtocolReader(client, "walk.s.t", "delta", data)

    def require_changes_lead_on(self, short_name: str) -> None:
        read = self.read[self.contract.table(short_name).name]
        with self.reader(short_name) as reader:
            before = Rows(read[0].columns, ())
            for version, after in enumerate(read):
                changes = reader.change_rows(reader.changes(version, version))
                same_rows(applied(before, changes), after, f"{short_name} at {version}")
                before = after


@pytest.fixture(scope="module")
def walk(lake: Lake, catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """A day, another day, the first day corrected, and all rolled back to before that; tests publish more."""
    folder = tmp_path_factory.mktemp("walk")
    walk = Walk(lake, catalog, a_contract(folder / "contracts", "changed", "iceberg"))
    walk.run(MONDAY, orders(MONDAY, 3))
    walk.run(TUESDAY, orders(TUESDAY, 3))
    walk.run(MONDAY, corrected(MONDAY, 0))
    for table in walk.contract.tables:
        rollback(lake, catalog, walk.contract, table, 1)
    walk.look()
    return walk


def corrected(day: str, number: int) -> list[dict[str, object]]:
    """The day's orders again, other ones for each number: one as it was, one changed, one missing, one new."""
    first, second, _ = orders(day, 3)
    return [first, {**second, "amount": 99.5 + number}, an_order(day, 7 + number)]


def kinds(reader: ProtocolReader, version: int) -> dict[str, int]:
    files = reader.changes(version, version).files
    return {kind: sum(file.kind == kind for file in files) for kind in ("add", "remove", "cdc")}


def test_every_publication_and_rollback_leads_to_the_next(walk: Walk) -> None:
    walk.require_changes_lead_on("orders")
    walk.require_changes_lead_on("totals")
    with walk.reader("orders") as reader:
        assert kinds(reader, 1) == {"add": 1, "remove": 0, "cdc": 0}
        corrected_rows = reader.change_rows(reader.changes(2, 2))
        rolled_back = reader.change_rows(reader.changes(3, 3))
    assert change_types(corrected_rows) == ["delete", "insert", "update_postimage", "update_preimage"]
    assert change_types(rolled_back) == change_types(corrected_rows)
    assert len({folder for version in (2, 3) for folder in folders_of(walk, version)}) == 2


def test_a_crash_between_main_and_ledger_is_repaired_without_spark_and_older_orphans_are_cleaned_up(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run never lands; the next one lands and is not recorded. The change files of the first are dropped."""

    def killed(*_: object) -> None:
        raise Killed

    before = walk.folders()
    with monkeypatch.context() as patched:
        patched.setattr(IcebergStaging, "land", killed)
        walk.run_until_killed(MONDAY, corrected(MONDAY, 1))
    [orphan] = set(walk.folders()) - set(before)
    with monkeypatch.context() as patched:
        patched.setattr(publication, "record_landed", killed)
        walk.run_until_killed(MONDAY, corrected(MONDAY, 1))
    made = walk.folders()
    assert len(made) == len(before) + 2
    repaired = repair(open_lake_without_spark(walk.lake.settings), walk.catalog, walk.contract)
    assert {one.table for one in repaired} == set(walk.tables)
    assert walk.folders() == made
    walk.look()
    dropped = abandoned_changes.drop_abandoned(walk.lake, walk.catalog, walk.contract)
    assert orphan in dropped
    assert len(walk.folders()) == len(before) + 1
    walk.require_changes_lead_on("orders")


def test_what_was_recorded_and_lost_is_recorded_anew_where_there_is_spark(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[str] = []

    def killed(_lake: Lake, _ledger: Ledger, _contract: SetContract, landed: object, _lease: object) -> None:
        recorded.extend(landed.evidence["changes"].values())
        raise Killed

    before, folders = walk.versions(), walk.folders()
    with monkeypatch.context() as patched:
        patched.setattr(publication, "record_landed", killed)
        walk.run_until_killed(MONDAY, corrected(MONDAY, 2))
    for digest in recorded:
        index_path(walk.lake.settings.index_dir, digest).unlink()
    with pytest.raises(SparkError):
        repair(open_lake_without_spark(walk.lake.settings), walk.catalog, walk.contract)
    assert walk.versions() == before, "half a set was published"
    repair(walk.lake, walk.catalog, walk.contract)
    walk.look()
    dropped = abandoned_changes.drop_abandoned(walk.lake, walk.catalog, walk.contract)
    assert len(dropped) == 2, "the folders of the crashed run stay"
    assert len(walk.folders()) == len(folders) + 1
    walk.require_changes_lead_on("orders")


def test_lost_change_files_are_refused_with_the_oldest_readable_number(walk: Walk) -> None:
    table = walk.contract.table("orders").name
    corrected_files = change_files(walk, walk.ledger.at(table, 2))
    lost, aside = corrected_files[0], corrected_files[0].with_suffix(".aside")
    lost.rename(aside)
    try:
        with walk.reader("orders") as reader:
            asked = f"{reader.path}/changes?startingVersion=0"
            message = refusal(reader.client.get(asked, headers=reader.headers()), 400)["message"]
            assert "version [2]: its change files are lost" in message
            assert "startingVersion=3" in message
            assert CHANGES_FOLDER not in message, "recipients learn where files are"
            assert reader.changes(3, 3).files
            # Snapshots and windows need no change files.
            assert reader.window(0, 3).files
            same_rows(reader.rows(reader.snapshot(version=2)), walk.read[table][2])
    finally:
        aside.rename(lost)


def change_types(changes: Rows) -> list[str]:
    place = changes.names.index("_change_type")
    return sorted(json.loads(row)[place] for row in changes.rows)


def folders_of(walk: Walk, version: int) -> set[Path]:
    table = walk.contract.table("orders").name
    return {file.parent for file in change_files(walk, walk.ledger.at(table, version))}


def change_files(walk: Walk, published: Publication | None) -> list[Path]:
    assert published is not None
    assert published.changes_digest is not None
    segment = Segment(index_path(walk.lake.settings.index_dir, published.changes_digest))
    return [Path(path) for path in change_files_of(segment, published.version)]
