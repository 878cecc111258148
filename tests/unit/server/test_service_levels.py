"""The freshness goal of a contract is its frequency and latency; times that cannot be used are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from lakeshare_pipelines.contracts import load_contracts
from lakeshare_pipelines.errors import ContractError
from lakeshare_server.service_levels import find_freshness_goal, find_goal_of_text
from tests.builders.sets import a_contract

HOUR_S = 3600


def level(name: str, value: Any, unit: str | None = None) -> dict[str, Any]:
    return {"property": name, "value": value} | ({} if unit is None else {"unit": unit})


@pytest.mark.parametrize(
    ("properties", "goal_s"),
    [
        (None, None),
        ([], None),
        ("1 d", None),
        ([level("retention", 3, "y"), level("latency", 4, "h")], None),
        ([level("frequency", 1)], 24 * HOUR_S),
        ([level("frequency", 1, "d"), level("latency", 6, "Hours")], 30 * HOUR_S),
        ([level("frequency", 1, "w"), level("frequency", 0.5, "h"), "odd"], HOUR_S / 2),
    ],
)
def test_the_goal_is_the_sum_of_frequency_and_latency(properties: object, goal_s: float | None) -> None:
    assert find_freshness_goal(properties) == goal_s


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (level("frequency", 0), "Give frequency a number of days"),
        (level("frequency", "daily"), "not 'daily'"),
        (level("frequency", True), "not True"),
        (level("frequency", float("nan")), "not nan"),
        (level("frequency", 1, "fortnight"), "one of the units s, min, h, d, w, mo and y, not 'fortnight'"),
        (level("latency", -1, "h"), "Give latency a number"),
    ],
)
def test_a_contract_with_a_time_that_cannot_be_used_is_refused(
    tmp_path: Path, entry: dict[str, Any], reason: str
) -> None:
    path = a_contract(tmp_path, "shop", "delta").path
    value = json.dumps(entry["value"]).replace("NaN", ".nan")
    fields = f"property: {entry['property']}, value: {value}, unit: {entry.get('unit', 'd')}"
    text = path.read_text() + "\nslaProperties: [{" + fields + "}]\n"
    path.write_text(text)
    with pytest.raises(ContractError) as refused:
        load_contracts(tmp_path)
    assert "slaProperties" in str(refused.value)
    assert reason in str(refused.value)
    assert find_goal_of_text(text) is None


def test_a_text_that_is_no_contract_has_no_goal() -> None:
    assert find_goal_of_text("{") is None
    assert find_goal_of_text("- 1") is None
