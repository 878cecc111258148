"""Whatever happened to a lake, its listing and its copies: what is called verified opens, and is the source at v*.

Of two days that follow each other, with everything real but the writers: plan, engine, verification, points.
"""

import datetime as dt
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable, QueryBuilder

from lakeshare_pipelines.backup.model import GOOD_STATUSES, TableProof
from lakeshare_pipelines.backup.points import get_point_time
from tests.builders.backup_histories import History
from tests.builders.backup_lakes import Lake
from tests.builders.campaign import campaign_size

HISTORIES = campaign_size(in_ci=10, in_campaign=500)
AT_ONCE = min(HISTORIES, 20)
DAYS = ("2026-11-20", "2026-11-21")


@pytest.mark.campaign
@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_what_is_called_verified_is_the_source_at_its_version(first: int, tmp_path: Path) -> None:
    found: Counter[str] = Counter()
    for seed in range(first, first + AT_ONCE):
        lake = Lake(tmp_path / str(seed))
        history = History(lake, seed)
        # One in five goes on for a second day, which builds on what the first one holds.
        for day in DAYS[: 2 if seed % 5 == 0 else 1]:
            found.update(_one_day(lake, history, day))
    # Most are verified: what never says yes would always be right.
    assert found["verified"] > AT_ONCE
    assert sum(found[status] for status in GOOD_STATUSES) > 4 * (found["degraded"] + found["failed"])


def _one_day(lake: Lake, history: History, day: str) -> list[str]:
    as_of = get_point_time(day)
    history.before(as_of)
    history.after(as_of, 4)
    listing = history.listing(history.random.choice((0.0, 0.02, 0.2)))
    if not any(one.last_modified < as_of for one in listing):
        # The planner refuses such a day.
        return ["nothing listed"]
    proved = lake.made(day, listing, lambda: history.after(as_of, 3))
    for proof in proved.tables:
        if proof.status in GOOD_STATUSES:
            _require_same(lake, history, proof, as_of)
    if proved.status in GOOD_STATUSES:
        assert all(proof.status in GOOD_STATUSES for proof in proved.tables)
    return [proof.status for proof in proved.tables]


def _require_same(lake: Lake, history: History, proof: TableProof, as_of: dt.datetime) -> None:
    name, told = proof.table.root, (history.seed, as_of, proof)
    assert proof.version is not None, told
    rows = _rows(lake.target / proof.table.stored_root, proof.version)
    same = [state for state in history.states(name, proof.version) if state.rows == rows]
    assert same, told
    assert same[0].committed_at < as_of, told
    assert proof.rows == len(rows), told
    if proof.status == "verified" and history.is_one_life(name):
        assert proof.version == history.newest(name, as_of).version, told


def _rows(table: Path, version: int) -> frozenset[int]:
    found = (
        QueryBuilder()
        .register("t", DeltaTable(str(table), version=version))
        .execute("SELECT n FROM t")
        .read_all()
    )
    return frozenset(row for chunk in found.column(0).chunks for row in chunk.to_pylist())
