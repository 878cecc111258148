"""What a contract promises to clients is kept: a state they could not read is rewritten before its audit, or stopped.

Tables come to main as somebody else's Spark leaves them; then a run of their set publishes another day. The judge of
what the official client reads is Spark on main.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import delta_sharing
import pytest
from pyiceberg.table import StaticTable

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.errors import NotAudited
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.audit import audit_and_save
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Lake, Staged, Verdict, Verdicts
from lakeshare_server.catalog import Catalog, Ledger, Publication
from lakeshare_server.settings import ServerSettings
from lakeshare_server.tables import read_iceberg
from tests.builders.audits import of
from tests.builders.canonical import same_frame
from tests.builders.hostile.served import quietly
from tests.builders.main_state import main_state
from tests.builders.promised_sets import (
    DEFAULT,
    EQUALITY_DELETE,
    MONDAY,
    TUESDAY,
    a_promising_contract,
    by_hand,
    created,
    deliver_tuesday,
    inserted,
)
from tests.builders.sharing import Provider, Running, a_server
from tests.builders.spark_iceberg import SparkIceberg

pytestmark = [
    pytest.mark.timeout(600),
    # The client's own: it concatenates empty frames.
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
]
SETS = (f"kept{number}" for number in itertools.count(1))
MERGE_ON_READ = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
DELETE = "DELETE FROM {t} WHERE id % 3 = 1"
NAMES = inserted("concat('n', id)")
LATER = f"INSERT INTO {{t}} VALUES (DATE'{MONDAY}', 7, 'late')"
# Another day's file, older than deletes: by itself, a rewrite removes only delete files older than all data.
OLDER = "INSERT INTO {t} VALUES (DATE'2024-01-03', 8, 'older')"


@dataclass(frozen=True)
class Case:
    """What was done to a table of main, and by which codes it is rewritten; `columns` are those of the contract."""

    story: Sequence[str]
    codes: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=lambda: {"name": "string"})


CASES: Mapping[str, Case] = {
    "deleted_v2": Case([created(MERGE_ON_READ), NAMES, DELETE, LATER], ("ROW_LEVEL_DELETES",)),
    "deleted_v3": Case([created(MERGE_ON_READ).replace("'2'", "'3'"), NAMES, DELETE], ("ROW_LEVEL_DELETES",)),
    "deleted_in_avro": Case(
        [created(f"{MERGE_ON_READ}, 'write.delete.format.default' = 'avro'"), NAMES, DELETE],
        ("DELETE_FORMAT",),
    ),
    "deleted_by_value": Case([created(), OLDER, NAMES, EQUALITY_DELETE], ("ROW_LEVEL_DELETES",)),
    "renamed": Case(
        [created(columns="id INT, label STRING"), NAMES, "ALTER TABLE {t} RENAME COLUMN label TO name"],
        ("RENAMED_COLUMNS",),
    ),
    "added_again": Case(
        [
            *(created(), NAMES),
            *("ALTER TABLE {t} DROP COLUMN name", "ALTER TABLE {t} ADD COLUMN name STRING"),
        ],
        ("RENAMED_COLUMNS",),
    ),
    "promoted": Case(
        [
            created(columns="id INT, count INT, ratio FLOAT, price DECIMAL(5, 2)"),
            inserted("2147483647", "CAST(0.1 AS FLOAT)", "CAST(999.99 AS DECIMAL(5, 2))"),
        ],
        ("WIDENED_TYPES",),
        {"count": "bigint", "ratio": "double", "price": "decimal(12,2)"},
    ),
    "with_default": Case(
        [created(columns="id INT").replace("'2'", "'3'"), inserted(), DEFAULT],
        ("COLUMN_DEFAULTS",),
        {"rate": "int"},
    ),
    "orc_and_renamed_and_deleted": Case(
        [
            created(f"'write.format.default' = 'orc', {MERGE_ON_READ}", "id INT, label STRING"),
            *(NAMES, "ALTER TABLE {t} RENAME COLUMN label TO name", DELETE),
        ],
        # Iceberg writes deletes in the format of the data.
        ("DELETE_FORMAT", "FILE_FORMAT"),
    ),
    "imported": Case(
        [
            "CREATE TABLE {c}_imported (id INT, label STRING, day DATE) USING parquet PARTITIONED BY (day)",
            f"INSERT INTO {{c}}_imported VALUES (1, 'a', DATE'{MONDAY}'), (2, NULL, DATE'{MONDAY}')",
            created(columns="id INT, label STRING"),
            "CALL {c}.system.add_files('{t}', '{c}_imported')",
            "ALTER TABLE {t} RENAME COLUMN label TO name",
        ],
        ("FILES_WITHOUT_IDS",),
    ),
}


def staged_and_judged(lake: Lake, contract: SetContract) -> tuple[Staged, Verdicts]:
    deliver_tuesday(lake, contract)
    staged = stage(lake, contract, [TUESDAY], str(uuid4()))
    return staged, audit_and_save(lake, contract, staged)


@dataclass(frozen=True)
class Kept:
    """All cases as one set, published and served."""

    contract: SetContract
    staged: Staged
    verdicts: Verdicts
    publications: Mapping[str, Publication]
    server: Running
    token: str

    def verdict(self, name: str) -> Verdict:
        return of(self.verdicts, "serveable", f"_{name}")


@pytest.fixture(scope="module")
def kept(lake: Lake, catalog: Catalog, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    name = next(SETS)
    by_hand(lake, name, {table: case.story for table, case in CASES.items()})
    columns = {table: case.columns for table, case in CASES.items()}
    contract = a_promising_contract(tmp_path_factory.mktemp("contracts"), name, columns, ["python-parquet"])
    staged, verdicts = staged_and_judged(lake, contract)
    assert verdicts.green, [(one.name, one.reason) for one in verdicts.failed]
    publications = publish(lake, catalog, contract, staged, verdicts)
    provider = Provider(ServerSettings(state_dir=lake.settings.state_dir, port=0), catalog)
    provider.share(*(table.name for table in contract.tables), share=name)
    token = provider.recipient(f"reader_of_{name}", (name,))
    with a_server(provider) as server:
        by_table = {one.table: one for one in publications}
        yield Kept(contract, staged, verdicts, by_table, server, token)


@pytest.mark.parametrize("name", CASES)
def test_a_table_is_rewritten_for_the_clients_of_its_contract(lake: Lake, kept: Kept, name: str) -> None:
    """The Python client reads in parquet format what Spark reads on main; the check names what was rewritten."""
    table = f"{kept.contract.name}_{name}"
    rows = SparkIceberg(lake.spark, lake.catalog("main")).rows(table)
    publication = kept.publications[f"lake.{table}"]
    assert len(rows.rows) == publication.rows > 2
    url = f"{kept.server.profile(kept.token)}#{kept.contract.name}.lake.{table}"
    frame = quietly(delta_sharing.load_as_pandas, url, use_delta_format=False)
    same_frame(frame[rows.names], rows)

    verdict = kept.verdict(name)
    assert (verdict.passed, verdict.severity) == (True, "error")
    assert tuple(verdict.observed["rewritten"]) == CASES[name].codes
    served = {row["client"]: row["served as"] for row in verdict.observed["clients"]}
    assert served == {
        "python-parquet": "parquet",
        "python-delta": "delta",
        "spark": "delta",
        "iceberg-rest": "iceberg",
    }
    assert publication.verdicts["digest"] == kept.verdicts.digest
    assert publication.verdicts["failed_checks"] == []

    if name.startswith("deleted_"):
        # PyIceberg refuses a scan that meets equality deletes, whether they apply to a file or not.
        assert publication.metadata_location is not None
        published = StaticTable.from_metadata(publication.metadata_location)
        scan = published.scan(snapshot_id=publication.snapshot_id)
        assert scan.to_arrow().num_rows == publication.rows
        assert published.inspect.delete_files(publication.snapshot_id).num_rows == 0


def test_files_without_deleted_rows_are_kept_and_later_deletes_write_copies(lake: Lake, kept: Kept) -> None:
    """Tuesday's files are kept, and one of Monday that was written after the rows were deleted."""
    table = f"{lake.catalog('main')}.lake.{kept.contract.name}_deleted_v2"
    snapshots = lake.spark.sql(f"SELECT * FROM {table}.snapshots ORDER BY committed_at").collect()
    rewritten = [one.summary for one in snapshots if "deleted-data-files" in one.summary]
    assert [one["deleted-data-files"] for one in rewritten] == ["1"]
    properties = {row.key: row.value for row in lake.spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}
    assert {properties[f"write.{verb}.mode"] for verb in ("delete", "update", "merge")} == {"copy-on-write"}


@pytest.fixture(scope="module")
def deleted(lake: Lake) -> str:
    """A set with one table of main, from which rows were deleted by position."""
    name = next(SETS)
    by_hand(lake, name, {"t": CASES["deleted_v2"].story})
    return name


def test_a_broken_promise_that_may_not_be_mended_stops_the_publication(
    lake: Lake, catalog: Catalog, deleted: str, tmp_path: Path
) -> None:
    promise = {"clients": ["python-delta", "python-parquet"], "rewrite": False}
    contract = a_promising_contract(tmp_path, deleted, {"t": {"name": "string"}}, promise)
    before = main_state(lake, contract)

    staged, verdicts = staged_and_judged(lake, contract)

    verdict = of(verdicts, "serveable", "_t")
    assert verdict.blocks
    assert verdict.reason.startswith("python-parquet could not read it: it has deletion vectors on 1 files")
    assert "[ROW_LEVEL_DELETES]. Run CALL system.rewrite_data_files" in verdict.reason
    with pytest.raises(NotAudited, match="serveable"):
        publish(lake, catalog, contract, staged, verdicts)
    assert main_state(lake, contract) == before
    assert Ledger(catalog).latest(contract.tables[0].name) is None


def test_a_broken_promise_can_be_a_warning(
    lake: Lake, catalog: Catalog, deleted: str, tmp_path: Path
) -> None:
    promise = {"clients": ["python-parquet"], "rewrite": False, "severity": "warning"}
    contract = a_promising_contract(tmp_path, deleted, {"t": {"name": "string"}}, promise)

    staged, verdicts = staged_and_judged(lake, contract)
    [publication] = publish(lake, catalog, contract, staged, verdicts)

    verdict = of(verdicts, "serveable", "_t")
    assert (verdict.passed, verdict.severity, verdicts.green) == (False, "warning", True)
    assert publication.verdicts["failed_checks"] == [verdict.name]
    # Seven of Monday, two of them deleted, and two of Tuesday.
    assert publication.rows == 7 == lake.table(publication.table).count()


def test_a_promise_that_no_rewrite_can_keep_stops_the_publication_with_the_fix(
    lake: Lake, catalog: Catalog, tmp_path: Path
) -> None:
    name = next(SETS)
    story = [created(columns="id INT, name STRING, at TIMESTAMP_NTZ"), inserted("'n'", "NULL")]
    by_hand(lake, name, {"t": [*story, "ALTER TABLE {t} RENAME COLUMN name TO label"]})
    contract = a_promising_contract(tmp_path, name, {"t": {"label": "string"}}, ["python-parquet"])
    before = main_state(lake, contract)

    staged, verdicts = staged_and_judged(lake, contract)

    verdict = of(verdicts, "serveable", "_t")
    assert verdict.blocks
    assert not verdict.observed["rewritten"], "it was rewritten in vain"
    assert verdict.reason.startswith(
        "python-parquet could not read it: it has timestamps without a time zone (column at) "
        "[TIMESTAMPS_WITHOUT_ZONE]. Store them as timestamps with a zone"
    )
    codes = [row["code"] for row in verdict.observed["clients"] if row["client"] == "python-parquet"]
    assert codes == ["RENAMED_COLUMNS", "TIMESTAMPS_WITHOUT_ZONE"]
    with pytest.raises(NotAudited, match="serveable"):
        publish(lake, catalog, contract, staged, verdicts)
    assert main_state(lake, contract) == before


def test_what_cannot_be_published_at_all_is_stopped_before_main_whatever_is_promised(
    lake: Lake, catalog: Catalog, tmp_path: Path
) -> None:
    name = next(SETS)
    by_hand(lake, name, {"t": CASES["deleted_in_avro"].story})
    contract = a_promising_contract(tmp_path, name, {"t": {"name": "string"}}, None)
    before = main_state(lake, contract)

    staged, verdicts = staged_and_judged(lake, contract)

    verdict = of(verdicts, "serveable", "_t")
    assert verdict.blocks
    assert verdict.reason.startswith("it cannot be published: ")
    assert {row["code"] for row in verdict.observed["clients"]} == {"DELETE_FORMAT"}
    with pytest.raises(NotAudited, match="serveable"):
        publish(lake, catalog, contract, staged, verdicts)
    assert main_state(lake, contract) == before


def test_names_that_files_spell_otherwise_outlast_a_rewrite_until_they_are_changed(
    lake: Lake, tmp_path: Path
) -> None:
    iceberg = SparkIceberg.at(lake.spark, "spelt", tmp_path)
    rewrite = "CALL {c}.system.rewrite_data_files(table => '{t}', options => map('rewrite-all', 'true'))"

    def codes() -> list[str | None]:
        state = iceberg.state("t")
        head = read_iceberg(state.metadata_location, state.snapshot_id).head
        return [one.code for one in head.hindrances]

    iceberg.run("t", ["CREATE TABLE {t} (`a b` INT) USING iceberg", "INSERT INTO {t} VALUES (1)", rewrite])
    assert codes() == ["NAMES_SPELT_OTHERWISE"]
    iceberg.run("t", ["ALTER TABLE {t} RENAME COLUMN `a b` TO a_b", rewrite])
    assert codes() == []
