"""Which states of a followed Iceberg table get the next numbers: those it went through since the last number, in order.

A state is known by the run that its number was given in, so what was numbered once is not numbered again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from lakeshare_server.catalog import NumberedSnapshot, Publication
from lakeshare_server.versions.table_history import TableHistory, TableState, told_log

# Of a table that nobody followed before, so many states get numbers; older ones do not.
FIRST_LOOK = 1000


@dataclass(frozen=True)
class Found:
    """A state that gets a number; `at_ms` is when it came about, None if nobody knows."""

    state: TableState
    at_ms: int | None
    run_id: str
    rollback_of: int | None = None


def new_states(
    history: TableHistory,
    branch: Sequence[TableState] | None,
    latest: Publication | None,
    numbered: Sequence[NumberedSnapshot],
) -> Sequence[Found]:
    """The states to be numbered after `latest`, oldest first; none when the table is as it was.

    `branch` are the states of a branch since the latest number, None where the table's own log tells them; `numbered`
    is everything that has a number.
    """
    ours = [one for one in numbered if one.table_id == history.table_id]
    is_ours = latest is not None and latest.table_id == history.table_id
    last = (latest.snapshot_id, latest.schema_id) if latest is not None and is_ours else None
    if branch is None:
        fresh = _after_known(history, {one.run_id for one in ours})
        fresh = fresh if ours else fresh[-FIRST_LOOK:]
    else:
        fresh = _of_branch(history, branch, None if last is None else last[0])
    found = [Found(state, state.at_ms, _run_of(history, state)) for state in fresh]
    current = history.current.snapshot_id, history.current.schema_id
    told = (fresh[-1].snapshot_id, fresh[-1].schema_id) if fresh else last
    if told != current:
        found.append(_told_by_no_log(history, told, latest))
    return _with_rollbacks(found, -1 if latest is None else latest.version, ours)


def _after_known(history: TableHistory, runs: Collection[str]) -> Sequence[TableState]:
    """What the table's log tells after the last state that has a number."""
    states = told_log(history)
    known = [place for place, state in enumerate(states) if _run_of(history, state) in runs]
    return states[known[-1] + 1 :] if known else states


def _of_branch(
    history: TableHistory, branch: Sequence[TableState], last_snapshot: int | None
) -> Sequence[TableState]:
    """The branch's states without commits that left the snapshot as it was."""
    states: list[TableState] = []
    for state in branch:
        before = states[-1].snapshot_id if states else last_snapshot
        if state.snapshot_id != before:
            states.append(state)
    if states and states[-1].snapshot_id == history.current.snapshot_id:
        current = history.current
        states[-1] = replace(
            states[-1], metadata_location=current.metadata_location, schema_id=current.schema_id
        )
    return states


def _told_by_no_log(
    history: TableHistory, told: tuple[int | None, ...] | None, latest: Publication | None
) -> Found:
    """The current state where no log tells how it came about: other columns, or an older state restored."""
    state = history.current
    if latest is None:
        return Found(state, state.at_ms, _run_of(history, state))
    run_id = f"{_run_of(history, state)}-after-{latest.version}"
    has_other_columns = told is not None and told[0] == state.snapshot_id
    return Found(state, history.updated_ms if has_other_columns else None, run_id)


def _with_rollbacks(
    found: Sequence[Found], latest: int, numbered: Sequence[NumberedSnapshot]
) -> Sequence[Found]:
    """The same, with the number that a restored snapshot had before."""
    numbers = {one.snapshot_id: one.version for one in numbered}
    states = []
    for number, one in enumerate(found, latest + 1):
        before = numbers.get(one.state.snapshot_id)
        # The number right before pins the same snapshot where only the columns changed.
        states.append(one if before is None or before == number - 1 else replace(one, rollback_of=before))
        numbers[one.state.snapshot_id] = number
    return states


def _run_of(history: TableHistory, state: TableState) -> str:
    return f"follow-{history.table_id}-{state.commit or state.at_ms}-{state.snapshot_id}"
