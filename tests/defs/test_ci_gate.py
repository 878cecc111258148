"""The CI gate closes for the newest evaluation of a check, and never opens for a selection of nothing."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from lakeshare_pipelines.definitions import find_failed_checks
from lakeshare_pipelines.errors import UnknownSelection

DEPARTURES, DELAYS = dg.AssetKey(["flights", "departures"]), dg.AssetKey(["flights", "daily_delays"])
BOTH = "flights/departures,flights/daily_delays"


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with dg.DagsterInstance.get() as of_home:
        yield of_home


def evaluated(
    instance: dg.DagsterInstance, asset: dg.AssetKey, check: str, passed: bool, severity: str = "ERROR"
) -> None:
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=asset, check_name=check, passed=passed, severity=dg.AssetCheckSeverity(severity)
        )
    )


def test_the_newest_evaluation_of_selected_checks_counts_and_warnings_unless_only_errors_do(instance):
    evaluated(instance, DEPARTURES, "structure", passed=False)
    evaluated(instance, DELAYS, "not_empty", passed=False)
    evaluated(instance, DEPARTURES, "structure", passed=True)

    assert find_failed_checks("flights/departures", errors_only=False) == []
    for selection in ("*", BOTH, 'key:"flights/daily_delays"'):
        assert find_failed_checks(selection, errors_only=False) == [
            "flights/daily_delays not_empty: ERROR failed"
        ]

    evaluated(instance, DEPARTURES, "drift", passed=False, severity="WARN")
    assert find_failed_checks("flights/departures", errors_only=False) == [
        "flights/departures drift: WARN failed"
    ]
    assert find_failed_checks("flights/departures", errors_only=True) == []


@pytest.mark.parametrize(
    "selection", ["flights/nope", "flights/departures or flights/daily_delays", "kind:nope"]
)
def test_a_selection_that_names_nothing_is_refused(selection):
    with pytest.raises(UnknownSelection, match="--select") as refusal:
        find_failed_checks(selection, errors_only=False)
    assert selection in str(refusal.value)
