"""Whatever happens to an Iceberg table: after a look the newest number tells the current state, each state once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeshare_server.catalog import NumberedSnapshot, Publication
from lakeshare_server.versions import followed_iceberg
from lakeshare_server.versions.followed_iceberg import TableHistory, find_new_states, read_history
from lakeshare_server.versions.metadata_sources import Pointer
from tests.builders.publications import a_publication

UUID = "0f1e2d3c-0000-4000-8000-000000000000"
STEPS = ("append", "append", "roll back", "expire", "filter", "other columns", "property", "restore", "look")


@dataclass
class Model:
    """A table whose owner does one thing after the other, and the ledger of those who look."""

    now: int = 0
    snapshots: dict[int, int] = field(default_factory=dict)  # the schema of each
    log: list[tuple[int, int]] = field(default_factory=list)
    current: int = 0
    schema: int = 0
    backups: list[bytes] = field(default_factory=list)
    numbers: list[Publication] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    unseen: list[int] = field(
        default_factory=list
    )  # what became current since the last look, and can be told

    def __post_init__(self) -> None:
        self.append(0)

    def do(self, step: str, choice: int) -> None:
        self.now += 10
        steps: dict[str, Callable[[int], None]] = {
            "append": self.append,
            "roll back": self.roll_back,
            "expire": self.expire,
            "filter": self.filter,
            "other columns": self.other_columns,
            "property": lambda _: None,
            "restore": self.restore,
            "look": lambda _: self.look(),
        }
        steps[step](choice)
        self.backups.append(self.metadata())

    def append(self, _: int) -> None:
        self.make_current(1000 + self.now)
        self.snapshots[self.current] = self.schema

    def roll_back(self, choice: int) -> None:
        known = sorted(self.snapshots)
        if known[choice % len(known)] != self.current:
            self.make_current(known[choice % len(known)])

    def make_current(self, snapshot: int) -> None:
        self.current = snapshot
        self.log.append((self.now, snapshot))
        self.unseen.append(snapshot)

    def expire(self, choice: int) -> None:
        """As Java does: of the log everything before an expired snapshot goes."""
        gone = self.gone(choice)
        last = max((place for place, (_, one) in enumerate(self.log) if one in gone), default=-1)
        self.log = self.log[last + 1 :]
        self.unseen = self.unseen[-len(self.log) :] if self.log else []

    def filter(self, choice: int) -> None:
        """As PyIceberg does: only the expired snapshots go."""
        gone = self.gone(choice)
        self.log = [entry for entry in self.log if entry[1] not in gone]
        self.unseen = [one for one in self.unseen if one not in gone]

    def gone(self, choice: int) -> set[int]:
        old = [one for one in sorted(self.snapshots) if one != self.current]
        gone = set(old[: choice % (len(old) + 1)])
        self.snapshots = {one: schema for one, schema in self.snapshots.items() if one not in gone}
        return gone

    def other_columns(self, choice: int) -> None:
        self.schema = choice % 3

    def restore(self, choice: int) -> None:
        """Everything as it was at some time; what happened since is forgotten."""
        if self.backups:
            found = orjson.loads(self.backups[choice % len(self.backups)])
            self.snapshots = {one["snapshot-id"]: one["schema-id"] for one in found["snapshots"]}
            self.log = [(one["timestamp-ms"], one["snapshot-id"]) for one in found["snapshot-log"]]
            self.current, self.schema = found["current-snapshot-id"], found["current-schema-id"]
            self.unseen = []

    def metadata(self) -> bytes:
        return orjson.dumps(
            {
                "format-version": 2,
                "table-uuid": UUID,
                "location": "/t",
                "last-updated-ms": self.now,
                "current-snapshot-id": self.current,
                "current-schema-id": self.schema,
                "schemas": [{"schema-id": one} for one in range(3)],
                "snapshots": [
                    {"snapshot-id": one, "schema-id": schema, "timestamp-ms": self.now}
                    for one, schema in self.snapshots.items()
                ],
                "snapshot-log": [{"timestamp-ms": at, "snapshot-id": one} for at, one in self.log],
            }
        )

    def look(self) -> None:
        found = find_new_states(self.history(), None, self.latest(), self.numbered())
        before = len(self.numbers)
        for one in found:
            state, version = one.state, len(self.numbers)
            assert one.run_id not in self.runs
            assert one.rollback_of is None or self.numbers[one.rollback_of].snapshot_id == state.snapshot_id
            told = a_publication(
                table_id=UUID, snapshot_id=state.snapshot_id, schema_id=state.schema_id, run_id=one.run_id
            )
            self.runs.append(one.run_id)
            self.numbers.append(Publication(**vars(told), version=version, published_at=datetime.now(UTC)))
        newest = self.numbers[-1]
        assert (newest.snapshot_id, newest.schema_id) == (self.current, self.schema)
        # What became current since the last look is numbered, and in order.
        rest = iter(one.snapshot_id for one in self.numbers[before:])
        assert all(snapshot in rest for snapshot in self.unseen)
        self.unseen = []
        assert find_new_states(self.history(), None, self.latest(), self.numbered()) == []

    def history(self) -> TableHistory:
        return read_history(OneFile(self.metadata()), Pointer("/t/metadata/v1.metadata.json", ""))

    def latest(self) -> Publication | None:
        return self.numbers[-1] if self.numbers else None

    def numbered(self) -> list[NumberedSnapshot]:
        return [
            NumberedSnapshot(one.version, one.table_id, one.snapshot_id, one.run_id) for one in self.numbers
        ]


class OneFile:
    """A store of one object."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def head(self, _: str) -> Any:
        return None

    def read(self, _: str) -> bytes:
        return self._content


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), max_size=30))
def test_numbers_follow_the_table_through_everything(steps: list[tuple[str, int]]) -> None:
    model = Model()
    for step, choice in steps:
        model.do(step, choice)
    model.look()


def test_the_first_look_at_a_long_log_numbers_its_newest_end() -> None:
    model = Model()
    for _ in range(followed_iceberg.FIRST_OBSERVATION + 5):
        model.now += 1
        model.append(0)
    found = find_new_states(model.history(), None, None, [])
    assert len(found) == followed_iceberg.FIRST_OBSERVATION
    assert found[-1].state.snapshot_id == model.current
