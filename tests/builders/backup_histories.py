"""Random histories of a lake with small real Delta tables, and listings of it that lag behind and lose rows.

Every row that is ever written has a number of its own, so that what a copy opens with tells which state it is.
"""

import datetime as dt
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from lakeshare_pipelines.backup.stores import ListedObject
from tests.builders.backup_lakes import AS_OF, Lake, at
from tests.builders.log_files import PROTOCOL, WrittenLog, add, metadata, remove

COLUMNS = {"n": "long"}
NAMES = ("sales/orders", "sales/items", "_staging/odd name+%")
VIEWS = 4
"""A listing shows each key as it was at one of so many moments before the listing ended."""


@dataclass(frozen=True)
class State:
    """What one version of a table has, and when it was committed."""

    version: int
    committed_at: dt.datetime
    rows: frozenset[int]


@dataclass
class Life:
    """A table from its making to its end: `states` by version; the next one at the same place is another life."""

    log: WrittenLog
    states: list[State] = field(default_factory=list)
    live: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)
    removed: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)


@dataclass
class History:
    """A lake that goes on, one operation after the other, by the numbers of a seed."""

    lake: Lake
    seed: int
    lives: dict[str, list[Life]] = field(default_factory=dict)
    views: list[dict[str, ListedObject]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = AS_OF - dt.timedelta(hours=8)
        self._number = 0
        for name in NAMES[: self.random.randint(1, 3)]:
            self._create(name)

    def before(self, as_of: dt.datetime) -> None:
        """Operations before the moment that a point is of."""
        self.now = max(self.now, as_of - dt.timedelta(hours=8))
        for _ in range(self.random.randint(2, 9)):
            self._operate()

    def after(self, as_of: dt.datetime, most: int) -> None:
        """Operations after it, while the listing is awaited, made, or used."""
        self.now = max(self.now, as_of)
        for _ in range(self.random.randint(0, most)):
            self._operate()

    def listing(self, lost: float) -> list[ListedObject]:
        """What is listed: each key as it was at some moment lately, or not at all."""
        late = self.views[-VIEWS:]
        keys = sorted({key for view in late for key in view})
        seen = [self.random.choice(late).get(key) for key in keys]
        return [one for one in seen if one is not None and self.random.random() >= lost]

    def newest(self, name: str, as_of: dt.datetime) -> State:
        """The newest state before as_of of the life that the table had then."""
        before = [one for life in self.lives[name] for one in life.states if one.committed_at < as_of]
        return max(before, key=lambda one: one.committed_at)

    def is_one_life(self, name: str) -> bool:
        """Whether the table was never made anew."""
        return len(self.lives[name]) == 1

    def states(self, name: str, version: int) -> Iterator[State]:
        """What the table was at a version, in each of its lives."""
        for life in self.lives[name]:
            yield from (one for one in life.states if one.version == version)

    def _operate(self) -> None:
        self.now += dt.timedelta(minutes=self.random.randint(1, 30))
        name = self.random.choice(sorted(self.lives))
        life = self.lives[name][-1]
        operation = self.random.choices(
            (
                self._append,
                self._overwrite,
                self._delete,
                self._restore,
                self._checkpoint,
                self._vacuum,
                self._clean,
            ),
            (8, 2, 3, 2, 2, 3, 1),
        )[0]
        if self.random.random() < 0.03:
            self._create(name)
        else:
            operation(life)
        self._see()

    def _create(self, name: str) -> None:
        root = self.lake.source / name
        if root.exists():
            shutil.rmtree(root)
        life = Life(WrittenLog(root))
        self.lives.setdefault(name, []).append(life)
        self._commit(life, [PROTOCOL, metadata(COLUMNS), *self._new_files(life)])
        self._see()

    def _append(self, life: Life) -> None:
        self._commit(life, self._new_files(life))

    def _overwrite(self, life: Life) -> None:
        gone = [self._gone(life, name) for name in list(life.live)]
        self._commit(life, [*gone, *self._new_files(life)])

    def _delete(self, life: Life) -> None:
        if life.live:
            self._commit(life, [self._gone(life, self.random.choice(sorted(life.live)))])

    def _restore(self, life: Life) -> None:
        there = [name for name in sorted(life.removed) if (life.log.root / name).exists()]
        if there:
            name = self.random.choice(there)
            life.live[name] = life.removed.pop(name)
            self._commit(life, [self._add(life, name)])

    def _checkpoint(self, life: Life) -> None:
        version = life.states[-1].version
        if version not in life.checkpoints:
            adds = [self._add(life, name) for name in life.live]
            at(self.now, life.log.checkpoint(version, PROTOCOL, metadata(COLUMNS), *adds))
            life.log.announce(version=version, size=len(adds) + 2)
            life.checkpoints.append(version)

    def _vacuum(self, life: Life) -> None:
        for name in list(life.removed):
            (life.log.root / name).unlink(missing_ok=True)

    def _clean(self, life: Life) -> None:
        """Remove the commits before the newest checkpoint, as writers do after a month."""
        for version in range(max(life.checkpoints, default=0)):
            (life.log.folder / f"{version:020}.json").unlink(missing_ok=True)

    def _commit(self, life: Life, actions: list[dict]) -> None:
        version = len(life.states)
        at(self.now, life.log.commit(version, *actions))
        rows = frozenset(row for _, of_file in life.live.values() for row in of_file)
        life.states.append(State(version, self.now, rows))

    def _new_files(self, life: Life) -> list[dict]:
        return [self._new_file(life) for _ in range(self.random.randint(1, 3))]

    def _new_file(self, life: Life) -> dict:
        rows = range(self._number, self._number + self.random.randint(1, 3))
        self._number = rows.stop
        name = f"part-{rows.start:05}.parquet"
        path = life.log.root / name
        pq.write_table(pa.table({"n": pa.array(rows, pa.int64())}), path)
        # Data is written before the commit that tells of it.
        at(self.now - dt.timedelta(seconds=1), path)
        life.live[name] = (path.stat().st_size, frozenset(rows))
        return self._add(life, name)

    def _add(self, life: Life, name: str) -> dict:
        size_bytes, rows = life.live[name]
        return add(name, size=size_bytes, stats=f'{{"numRecords":{len(rows)}}}')

    def _gone(self, life: Life, name: str) -> dict:
        life.removed[name] = life.live.pop(name)
        return remove(name, deletionTimestamp=1)

    def _see(self) -> None:
        self.views.append({one.key: one for one in self.lake.listing()})
