"""A table of the lake that Spark changes at random, published after each turn by the steps that publish sets.

What is drawn depends on a number only, so a story that failed can be told again.
"""

import dataclasses
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from lakeshare_pipelines.contracts import SetContract
from lakeshare_pipelines.share.publication import record_landed, rollback
from lakeshare_pipelines.wap.iceberg import IcebergStaging
from lakeshare_pipelines.wap.staged import Lake, Staged, make_staging_name
from lakeshare_server.catalog import Catalog, Ledger, Publication, lock_set
from tests.builders.canonical import Rows
from tests.builders.sets import a_contract
from tests.builders.spark_iceberg import frame_rows

FIXED = ("id", "day")
NAMES = ("a", "b", "c", "d", "long name", "é")
TYPES = (
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "STRING",
    "DECIMAL(6, 2)",
    "BOOLEAN",
    "TIMESTAMP",
    "STRUCT<x: INT, y: STRING>",
)
WIDER = {"INT": "BIGINT", "FLOAT": "DOUBLE", "DECIMAL(6, 2)": "DECIMAL(12, 2)"}
PARTITIONS = ("day", "bucket(2, id)", "truncate(40, id)", "months(day)")
MODES = ("copy-on-write", "merge-on-read")
TURNS = 3  # at most, of one publication


@dataclass(frozen=True)
class Shape:
    """What of the table later statements depend on."""

    columns: tuple[tuple[str, str], ...]
    """Names and types beside the fixed ones, in Spark's words."""
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Told:
    """One publication: its row of the ledger, the statements that led to it, and what Spark reads of it."""

    publication: Publication
    statements: tuple[str, ...]
    rows: Rows
    field_ids: tuple[int, ...]
    """Of the columns of `rows`, in their order."""
    shape: Shape

    def under(self, later: "Told") -> Rows:
        """These rows with the columns of a later publication: found by id, null where they were not there."""
        places = [self.field_ids.index(one) if one in self.field_ids else None for one in later.field_ids]
        rows = ([None if at is None else row[at] for at in places] for row in map(json.loads, self.rows.rows))
        return Rows(later.rows.columns, tuple(sorted(json.dumps(row) for row in rows)))


@dataclass
class EvolvingTable:
    """The only table of a set of its own, and the random numbers that its story comes from."""

    lake: Lake
    catalog: Catalog
    contract: SetContract
    random: Random
    format_version: int
    shape: Shape
    next_id: int = 0
    story: list[Told] = field(default_factory=list)

    @classmethod
    def drawn(
        cls, lake: Lake, catalog: Catalog, folder: Path, seed: int, format_version: int
    ) -> "EvolvingTable":
        """A table that is not there yet."""
        whole = a_contract(folder, f"evolving{seed}v{format_version}", "iceberg")
        contract = dataclasses.replace(whole, tables=whole.tables[:1], shares=())
        random = Random(seed)
        columns = tuple((name, random.choice(TYPES)) for name in random.sample(NAMES, 3))
        return cls(lake, catalog, contract, random, format_version, Shape(columns))

    @property
    def name(self) -> str:
        """The table's name in the lake."""
        return self.contract.tables[0].name

    def publish_first(self) -> Told:
        """Make the table, with some rows, and publish it."""
        columns = ", ".join(f"`{name}` {kind}" for name, kind in self.shape.columns)
        made = (
            f"CREATE TABLE {{t}} (id BIGINT, day DATE, {columns}) USING iceberg "
            f"TBLPROPERTIES ('format-version' = '{self.format_version}')"
        )
        return self._publish([made, *self._insert()])

    def publish_next(self) -> Told:
        """Publish some changes, or an old number again."""
        shown = self.story[-1].publication.snapshot_id
        # Rolling back to the state that is shown already gives no number.
        targets = [told for told in self.story if told.publication.snapshot_id != shown]
        if targets and self.random.random() < 0.15:
            return self._roll_back(self.random.choice(targets))
        turns = [self._turn() for _ in range(self.random.randint(1, TURNS))]
        return self._publish([statement for turn in turns for statement in turn])

    def _publish(self, statements: Sequence[str]) -> Told:
        staging = IcebergStaging(self.lake, self.contract)
        run = str(uuid.uuid4())
        ref = make_staging_name(self.contract.name, ("all",), run, 0)
        base = staging.open(ref)
        self._run(ref, statements)
        if staging.seal(ref) == base:
            # Some draws change nothing, as compacting what is compact; there is nothing to publish then.
            statements = [*statements, *self._insert()]
            self._run(ref, statements[-1:])
        staged = Staged(
            set_name=self.contract.name,
            run_id=run,
            partitions=("all",),
            ref=ref,
            base=base,
            head=staging.seal(ref),
            tables=(),
            deliveries={},
            contract_digest=self.contract.digest,
        )
        with lock_set(self.catalog, self.contract.name, run, 60) as lease:
            landed = staging.land(staged, {})
            [publication] = record_landed(self.lake, Ledger(self.catalog), self.contract, landed, lease)
        staging.discard(ref)
        return self._told(publication, statements)

    def _run(self, ref: str, statements: Sequence[str]) -> None:
        branch = self.lake.catalog(ref)
        for statement in statements:
            self.lake.spark.sql(statement.format(t=f"{branch}.{self.name}", c=branch))

    def _roll_back(self, target: Told) -> Told:
        version = target.publication.version
        publication = rollback(self.lake, self.catalog, self.contract, self.contract.tables[0], version)
        self.shape = target.shape
        return self._told(publication, [f"rollback to {version}"])

    def _told(self, publication: Publication, statements: Sequence[str]) -> Told:
        rows = frame_rows(self.lake.table(self.name))
        assert publication.metadata_location is not None
        metadata = json.loads(Path(publication.metadata_location.removeprefix("file:")).read_text())
        [schema] = (one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])
        assert [one["name"] for one in schema["fields"]] == rows.names
        ids = tuple(one["id"] for one in schema["fields"])
        told = Told(publication, tuple(statements), rows, ids, self.shape)
        self.story.append(told)
        return told

    def _turn(self) -> list[str]:
        """The statements of one change."""
        kinds: list[tuple[int, Callable[[], list[str]]]] = [
            (4, self._insert),
            (3, self._delete),
            (3, self._update),
            (2, self._merge),
            (2, self._overwrite),
            (2, self._rename),
            (2, self._add_column),
            (1, self._drop_column),
            (2, self._promote),
            (2, self._repartition),
            (2, self._compact),
            (2, self._switch_modes),
        ]
        [chosen] = self.random.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])
        return chosen()

    def _insert(self, day: int | None = None) -> list[str]:
        count = self.random.randint(1, 60)
        first, self.next_id = self.next_id, self.next_id + count
        days = "CAST(id % 4 AS INT)" if day is None else str(day)
        values = ", ".join(f"{self._value(kind)} AS `{name}`" for name, kind in self.shape.columns)
        return [
            f"INSERT INTO {{t}} (id, day, {self._names()}) SELECT /*+ REPARTITION({self.random.randint(1, 3)}) */ "
            f"id, date_add(DATE'2024-01-30', {days}) AS day, {values} FROM range({first}, {self.next_id})"
        ]

    def _names(self) -> str:
        return ", ".join(f"`{name}`" for name, _ in self.shape.columns)

    def _value(self, kind: str) -> str:
        """An expression over `id` that is null now and then."""
        salt = self.random.randint(0, 999)
        number = f"(hash(id, {salt}) % 1000)"
        of = {
            "STRING": f"concat('s', {number})",
            "BOOLEAN": f"{number} > 0",
            "TIMESTAMP": f"timestamp_micros({number} * 1234567)",
            "FLOAT": f"IF(id % 11 = 0, float('NaN'), CAST({number} / 7 AS FLOAT))",
            "STRUCT<x: INT, y: STRING>": f"named_struct('x', CAST({number} AS INT), 'y', 'y')",
        }
        return f"IF(id % 7 = {salt % 7}, NULL, {of.get(kind) or f'CAST({number} AS {kind})'})"

    def _some(self) -> str:
        divisor = self.random.choice([2, 3, 5, 9])
        return f"id % {divisor} = {self.random.randrange(divisor)}"

    def _delete(self) -> list[str]:
        return [f"DELETE FROM {{t}} WHERE {self._some()}"]

    def _update(self) -> list[str]:
        name, kind = self.random.choice(self.shape.columns)
        return [f"UPDATE {{t}} SET `{name}` = {self._value(kind)} WHERE {self._some()}"]

    def _merge(self) -> list[str]:
        name, kind = self.random.choice(self.shape.columns)
        first, self.next_id = self.next_id, self.next_id + 5
        return [
            f"MERGE INTO {{t}} t USING (SELECT id FROM range({max(0, first - 40)}, {self.next_id})) s ON t.id = s.id "
            f"WHEN MATCHED AND s.id % 4 = 1 THEN DELETE "
            f"WHEN MATCHED AND s.id % 4 = 2 THEN UPDATE SET `{name}` = CAST(NULL AS {kind}) "
            "WHEN NOT MATCHED THEN INSERT (id, day) VALUES (s.id, DATE'2024-02-09')"
        ]

    def _overwrite(self) -> list[str]:
        day = self.random.randrange(4)
        return [f"DELETE FROM {{t}} WHERE day = date_add(DATE'2024-01-30', {day})", *self._insert(day)]

    def _free_name(self) -> str | None:
        taken = {name for name, _ in self.shape.columns}
        free = [name for name in NAMES if name not in taken]
        return self.random.choice(free) if free else None

    def _rename(self) -> list[str]:
        old, _ = self.random.choice(self.shape.columns)
        new = self._free_name()
        if new is None:
            return []
        renamed = tuple((new if name == old else name, kind) for name, kind in self.shape.columns)
        self.shape = dataclasses.replace(self.shape, columns=renamed)
        return [f"ALTER TABLE {{t}} RENAME COLUMN `{old}` TO `{new}`"]

    def _add_column(self) -> list[str]:
        name, kind = self._free_name(), self.random.choice(TYPES)
        if name is None:
            return []
        self.shape = dataclasses.replace(self.shape, columns=(*self.shape.columns, (name, kind)))
        return [f"ALTER TABLE {{t}} ADD COLUMN `{name}` {kind}"]

    def _drop_column(self) -> list[str]:
        if len(self.shape.columns) == 1:
            return []
        gone = self.random.choice(self.shape.columns)
        self.shape = dataclasses.replace(
            self.shape, columns=tuple(one for one in self.shape.columns if one != gone)
        )
        return [f"ALTER TABLE {{t}} DROP COLUMN `{gone[0]}`"]

    def _promote(self) -> list[str]:
        narrow = [(name, kind) for name, kind in self.shape.columns if kind in WIDER]
        if not narrow:
            return []
        chosen = self.random.choice(narrow)
        wider = tuple((n, WIDER[k] if (n, k) == chosen else k) for n, k in self.shape.columns)
        self.shape = dataclasses.replace(self.shape, columns=wider)
        return [f"ALTER TABLE {{t}} ALTER COLUMN `{chosen[0]}` TYPE {WIDER[chosen[1]]}"]

    def _repartition(self) -> list[str]:
        chosen = self.random.choice(PARTITIONS)
        if chosen in self.shape.partitions:
            left = tuple(one for one in self.shape.partitions if one != chosen)
            self.shape = dataclasses.replace(self.shape, partitions=left)
            return [f"ALTER TABLE {{t}} DROP PARTITION FIELD {chosen}"]
        self.shape = dataclasses.replace(self.shape, partitions=(*self.shape.partitions, chosen))
        return [f"ALTER TABLE {{t}} ADD PARTITION FIELD {chosen}"]

    def _compact(self) -> list[str]:
        option = self.random.choice(["'rewrite-all', 'true'", "'delete-file-threshold', '1'"])
        return [f"CALL {{c}}.system.rewrite_data_files(table => '{{t}}', options => map({option}))"]

    def _switch_modes(self) -> list[str]:
        if self.format_version == 1:
            return []
        mode = self.random.choice(MODES)
        verbs = ", ".join(f"'write.{verb}.mode' = '{mode}'" for verb in ("delete", "update", "merge"))
        return [f"ALTER TABLE {{t}} SET TBLPROPERTIES ({verbs})"]
