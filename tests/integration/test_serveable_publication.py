"""What a contract promises to clients is kept: a state they could not read is rewritten before its audit, or stopped.

Tables come to main as somebody else's Spark leaves them; then a run of their set publishes another day. The judge of
what the official client reads is Spark on main.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import delta_sharing
import pytest
import yaml

from lakeshare_pipelines.contracts import SetContract, load_contract
from lakeshare_pipelines.errors import NotAudited
from lakeshare_pipelines.share.publication import publish
from lakeshare_pipelines.wap.lake import Lake
from lakeshare_pipelines.wap.replay import judged
from lakeshare_pipelines.wap.stage import stage
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.verdicts import Verdict, Verdicts
from lakeshare_server.catalog import Catalog, Ledger, Publication
from lakeshare_server.settings import ServerSettings
from tests.builders.audits import of
from tests.builders.canonical import same_frame
from tests.builders.hostile.served import quietly
from tests.builders.main_state import main_state
from tests.builders.sharing import Provider, Running, a_server
from tests.builders.spark_iceberg import SparkIceberg

pytestmark = [
    pytest.mark.timeout(600),
    # The client's own: it concatenates empty frames.
    pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning"),
]
MONDAY, TUESDAY = "2024-01-01", "2024-01-02"
SETS = (f"kept{number}" for number in itertools.count(1))
MERGE_ON_READ = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))
DELETE = "DELETE FROM {t} WHERE id % 3 = 1"


def created(properties: str = "", columns: str = "id INT, name STRING") -> str:
    return (
        f"CREATE TABLE {{t}} (day DATE, {columns}) USING iceberg PARTITIONED BY (day) "
        f"TBLPROPERTIES ('format-version' = '2'{properties and ', ' + properties})"
    )


def inserted(*more: str) -> str:
    values = ", ".join((f"DATE'{MONDAY}'", "CAST(id AS INT)", *more))
    return f"INSERT INTO {{t}} SELECT {values} FROM range(6)"


NAMES = inserted("concat('n', id)")


@dataclass(frozen=True)
class Case:
    """What somebody did to a table of main, and by which codes it is rewritten; `columns` are those of the contract."""

    story: Sequence[str]
    codes: tuple[str, ...]
    columns: Mapping[str, str] = field(default_factory=lambda: {"name": "string"})


CASES: Mapping[str, Case] = {
    "deleted_v2": Case([created(MERGE_ON_READ), NAMES, DELETE], ("ROW_LEVEL_DELETES",)),
    "deleted_v3": Case([created(MERGE_ON_READ).replace("'2'", "'3'"), NAMES, DELETE], ("ROW_LEVEL_DELETES",)),
    "deleted_in_avro": Case(
        [created(f"{MERGE_ON_READ}, 'write.delete.format.default' = 'avro'"), NAMES, DELETE],
        ("DELETE_FORMAT",),
    ),
    "deleted_by_value": Case([created(), NAMES, "equality"], ("EQUALITY_DELETES",)),
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
        [created(columns="id INT").replace("'2'", "'3'"), inserted(), "default"],
        ("COLUMN_DEFAULTS",),
        {"rate": "int"},
    ),
    "in_orc": Case([created("'write.format.default' = 'orc'"), NAMES], ("FILE_FORMAT",)),
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


def a_contract(folder: Path, name: str, tables: Mapping[str, Mapping[str, str]], promise: Any) -> SetContract:
    """A daily set of tables of these columns beside day and id, `lake.<set>_<table>` each."""
    document = {
        "apiVersion": "v3.1.0",
        "kind": "DataContract",
        "id": name,
        "name": name,
        "version": "1.0.0",
        "status": "active",
        "team": {"name": "lake"},
        "servers": [{"server": "lake", "type": "local", "format": "iceberg"}],
        "schema": [_of_contract(name, table, columns, promise) for table, columns in tables.items()],
        "customProperties": _properties(partitioning="daily", firstPartition=MONDAY),
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return load_contract(path)


def _of_contract(name: str, table: str, columns: Mapping[str, str], promise: Any) -> dict[str, Any]:
    day = {"name": "day", "logicalType": "date", "partitioned": True, "partitionKeyPosition": 1}
    others = [{"name": name, "physicalType": kind} for name, kind in {"id": "int", **columns}.items()]
    promised = {} if promise is None else {"serveableTo": promise}
    return {
        "name": table,
        "physicalName": f"lake.{name}_{table}",
        "properties": [day, *others],
        "customProperties": _properties(source=table, allowSchemaChanges=True, **promised),
    }


def _properties(**values: Any) -> list[dict[str, Any]]:
    return [{"property": name, "value": value} for name, value in values.items()]


def on_main(lake: Lake, name: str, stories: Mapping[str, Sequence[str]]) -> None:
    """Tables `lake.<name>_<table>` on main, each as its story leaves it."""
    ref, nessie, publisher = f"by-hand-{uuid4()}", lake.nessie(), lake.nessie("publisher")
    nessie.create_branch(ref, nessie.reference("main").hash)
    iceberg = SparkIceberg(lake.spark, lake.catalog(ref))
    lake.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {iceberg.name}.lake")
    for table, story in stories.items():
        for statement in story:
            if statement == "equality":
                iceberg.add_equality_delete(f"{name}_{table}", "id", 4, f"day={MONDAY}")
            elif statement == "default":
                iceberg.add_column_with_default(f"{name}_{table}", "rate", 7)
            else:
                iceberg.run(f"{name}_{table}", [statement])
    publisher.merge(
        *(ref, nessie.reference(ref).hash),
        onto_hash=nessie.reference("main").hash,
        message="by hand",
        author="tests",
        properties={},
    )


def deliver(lake: Lake, contract: SetContract) -> None:
    """Two rows for each table on Tuesday."""
    values = {"string": ("a", "b"), "bigint": (5_000_000_000, 1), "double": (1e300, 0.1)}
    folder = lake.settings.landing / contract.name / TUESDAY
    folder.mkdir(parents=True, exist_ok=True)
    for table in contract.tables:
        kinds = {column.name: column.type for column in table.columns[2:]}
        lines = [
            [TUESDAY, 10 + row, *(values.get(kind, (1, 2))[row] for kind in kinds.values())] for row in (0, 1)
        ]
        text = "\n".join(",".join(str(value) for value in line) for line in [["day", "id", *kinds], *lines])
        (folder / f"{table.source}.csv").write_text(text + "\n")
    (folder / "_SUCCESS").touch()


def staged_and_judged(lake: Lake, contract: SetContract) -> tuple[Staged, Verdicts]:
    deliver(lake, contract)
    staged = stage(lake, contract, [TUESDAY], str(uuid4()))
    return staged, judged(lake, contract, staged)


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
    on_main(lake, name, {table: case.story for table, case in CASES.items()})
    columns = {table: case.columns for table, case in CASES.items()}
    contract = a_contract(tmp_path_factory.mktemp("contracts"), name, columns, ["python-parquet"])
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
def test_the_python_client_reads_in_parquet_format_what_spark_reads_on_main(
    lake: Lake, kept: Kept, name: str
) -> None:
    table = f"{kept.contract.name}_{name}"
    rows = SparkIceberg(lake.spark, lake.catalog("main")).rows(table)
    assert len(rows.rows) == kept.publications[f"lake.{table}"].rows > 2
    url = f"{kept.server.profile(kept.token)}#{kept.contract.name}.lake.{table}"
    frame = quietly(delta_sharing.load_as_pandas, url, use_delta_format=False)
    same_frame(frame[rows.names], rows)


@pytest.mark.parametrize("name", CASES)
def test_the_check_tells_what_was_rewritten_and_who_reads_the_table(kept: Kept, name: str) -> None:
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


def test_the_ledger_knows_the_verdicts(kept: Kept) -> None:
    for publication in kept.publications.values():
        assert publication.verdicts["digest"] == kept.verdicts.digest
        assert publication.verdicts["failed_checks"] == []


def test_files_without_deleted_rows_stay_where_they_are(lake: Lake, kept: Kept) -> None:
    """Tuesday's file is as it was written; Monday's has the rows of no other day."""
    [table] = [one for one in kept.contract.tables if one.name.endswith("_deleted_v2")]
    frame = lake.spark.sql(
        f"SELECT * FROM {lake.catalog('main')}.{table.name}.snapshots ORDER BY committed_at"
    )
    newest = frame.collect()[-1]
    assert (newest.operation, newest.summary["deleted-data-files"]) == ("replace", "1")


def test_who_deletes_after_that_writes_copies(lake: Lake, kept: Kept) -> None:
    table = f"{lake.catalog('main')}.lake.{kept.contract.name}_deleted_v2"
    properties = {row.key: row.value for row in lake.spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}
    assert {properties[f"write.{verb}.mode"] for verb in ("delete", "update", "merge")} == {"copy-on-write"}


@pytest.fixture(scope="module")
def deleted(lake: Lake) -> str:
    """A set with one table of main, from which rows were deleted by position."""
    name = next(SETS)
    on_main(lake, name, {"t": CASES["deleted_v2"].story})
    return name


def test_a_broken_promise_that_may_not_be_mended_stops_the_publication(
    lake: Lake, catalog: Catalog, deleted: str, tmp_path: Path
) -> None:
    promise = {"clients": ["python-delta", "python-parquet"], "rewrite": False}
    contract = a_contract(tmp_path, deleted, {"t": {"name": "string"}}, promise)
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
    contract = a_contract(tmp_path, deleted, {"t": {"name": "string"}}, promise)

    staged, verdicts = staged_and_judged(lake, contract)
    [publication] = publish(lake, catalog, contract, staged, verdicts)

    verdict = of(verdicts, "serveable", "_t")
    assert (verdict.passed, verdict.severity, verdicts.green) == (False, "warning", True)
    assert publication.verdicts["failed_checks"] == [verdict.name]
    # Six of Monday, two of them deleted, and two of Tuesday.
    assert publication.rows == 6 == lake.table(publication.table).count()


def test_a_promise_that_no_rewrite_can_keep_stops_the_publication_with_the_fix(
    lake: Lake, catalog: Catalog, tmp_path: Path
) -> None:
    name = next(SETS)
    story = [created(columns="id INT, name STRING, at TIMESTAMP_NTZ"), inserted("'n'", "NULL")]
    on_main(lake, name, {"t": [*story, "ALTER TABLE {t} RENAME COLUMN name TO label"]})
    contract = a_contract(tmp_path, name, {"t": {"label": "string"}}, ["python-parquet"])
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
    on_main(lake, name, {"t": CASES["deleted_by_value"].story})
    contract = a_contract(tmp_path, name, {"t": {"name": "string"}}, None)
    before = main_state(lake, contract)

    staged, verdicts = staged_and_judged(lake, contract)

    verdict = of(verdicts, "serveable", "_t")
    assert verdict.blocks
    assert verdict.reason.startswith("it cannot be published: ")
    assert {row["code"] for row in verdict.observed["clients"]} == {"EQUALITY_DELETES"}
    with pytest.raises(NotAudited, match="serveable"):
        publish(lake, catalog, contract, staged, verdicts)
    assert main_state(lake, contract) == before
