"""Users of Spark say the sharing DDL from their session and get frames: `lakeshare.sql(…)`."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

import lakeshare_pipelines as lakeshare
from lakeshare_pipelines.wap.staged import Lake
from lakeshare_server.sql.grammar import StatementRefused


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_statements_are_done_and_the_last_one_answers_with_a_frame(lake: Lake) -> None:
    before = datetime.now(UTC).timestamp()
    frame = lakeshare.sql(
        "CREATE SHARE sales COMMENT 'Sold'; ALTER SHARE sales ADD TABLE lake.orders WITHOUT HISTORY;"
        "SHOW ALL IN SHARE sales",
        lake.spark,
    )
    assert dict(frame.dtypes)["added_at"] == "timestamp"
    assert dict(frame.dtypes)["history"] == "boolean"
    assert dict(frame.dtypes)["start_version"] == "bigint"
    [row] = frame.collect()
    assert (row.name, row.shared_object, row.history, row.start_version) == ("lake.orders",) * 2 + (
        False,
        None,
    )
    assert before - 1 < row.added_at.timestamp() < datetime.now(UTC).timestamp() + 1
    [told] = lakeshare.sql("DROP SHARE sales", lake.spark).collect()
    assert told.message == "share sales is gone, and the grants on it"
    assert lakeshare.sql("SHOW SHARES", lake.spark).count() == 0


def test_a_refused_statement_leaves_what_a_single_transaction_did_before_undone(lake: Lake) -> None:
    with pytest.raises(StatementRefused, match="line 1, column 28"):
        lakeshare.sql("CREATE SHARE a; DROP SHARE nix", lake.spark, single_transaction=True)
    assert lakeshare.sql("SHOW SHARES", lake.spark).collect() == []
