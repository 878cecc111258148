"""A report says what came of every case, the same to people, programs and CI servers, and holds no secret."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakeshare_conformance.case import MUST, OPTIONAL, SHOULD, Case, Level, format_value
from lakeshare_conformance.client import Client
from lakeshare_conformance.report import (
    FAILED,
    NOT_APPLICABLE,
    PASSED,
    Outcome,
    Report,
    run_cases,
    select_cases,
)
from lakeshare_conformance.targets import Targets, discover_targets
from tests.fakes.defects.tools import DATA, METADATA, QUERY, answer, at, each, put
from tests.fakes.model_answers import TOKEN
from tests.fakes.model_server import ModelServer, a_model_server


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with a_model_server() as server:
        yield server


@pytest.fixture
def ground(server: ModelServer) -> Iterator[Targets]:
    server.defect = None
    with Client(server.profile) as client:
        yield discover_targets(client, server.profile)


def a_case(level: Level = MUST, name: str = "versions.the-version-is-a-header") -> Case:
    return replace(select_cases([name])[0], level=level)


def a_report(ground: Targets, *outcomes: Outcome) -> Report:
    return Report(ground, outcomes, datetime(2026, 1, 2, tzinfo=UTC), 1.25)


def test_only_a_failed_must_fails_a_run(ground: Targets) -> None:
    for level in (SHOULD, OPTIONAL):
        assert not a_report(ground, Outcome(a_case(level), FAILED, 1, ("no",))).failed
    assert not a_report(ground, Outcome(a_case(), NOT_APPLICABLE, 0), Outcome(a_case(), PASSED, 1)).failed
    assert a_report(ground, Outcome(a_case(), PASSED, 1), Outcome(a_case(), FAILED, 1, ("no",))).failed


def test_the_table_counts_by_group_and_explains_what_did_not_pass(ground: Targets) -> None:
    lines = list(
        a_report(
            ground,
            Outcome(a_case(), PASSED, 3),
            Outcome(a_case(SHOULD), FAILED, 9, tuple(f"sentence {n}" for n in range(5))),
            Outcome(a_case(name="paging.every-page-has-an-end"), NOT_APPLICABLE, 0, (), "no pages"),
        ).text()
    )
    assert lines[0].endswith(": alpha.main.Orders, alpha.main.vectors, alpha.other.closed, beta.x.tiny")
    assert lines[2].split()[-3:] == ["1", "1", "0"]
    assert "  FAILED should: the-version-is-a-header: The version call answers 200" in lines[3]
    assert [line.strip() for line in lines[4:8]] == [
        *("sentence 0", "sentence 1", "sentence 2", "and in 2 more places")
    ]
    assert lines[9] == "  n/a must: every-page-has-an-end: no pages"
    assert lines[10].strip() == "must: 1 passed, 0 failed, 1 not applicable"
    assert lines[-1] == "passed: every must that applies holds (3 cases in 1.2 s)"


def test_json_and_junit_say_the_same(ground: Targets, tmp_path: Path) -> None:
    report = a_report(
        ground,
        Outcome(a_case(), FAILED, 2, ("odd \x00 \udcff <sentence> & more",), elapsed_s=0.5),
        Outcome(a_case(SHOULD), NOT_APPLICABLE, 0, (), "nothing there"),
        Outcome(a_case(OPTIONAL), PASSED, 1),
    )
    report.write_json(tmp_path / "new" / "report.json")
    report.write_junit(tmp_path / "new" / "report.xml")
    told = json.loads((tmp_path / "new" / "report.json").read_text())
    assert told["failed"] is True
    assert [case["verdict"] for case in told["cases"]] == ["failed", "not applicable", "passed"]
    assert told["counts"]["must"] == {"passed": 0, "failed": 1, "not applicable": 0}
    assert told["cases"][0]["sections"] == ["1.5", "0.7"]
    [suite] = ET.parse(tmp_path / "new" / "report.xml").getroot()
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "skipped")} == {
        "name": "versions",
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }
    failed, skipped, passed = suite
    assert failed.find("failure").attrib == {  # type: ignore[union-attr]
        "type": "must",
        "message": "odd � � <sentence> & more",
    }
    assert skipped.find("skipped").get("message") == "nothing there"  # type: ignore[union-attr]
    assert list(passed) == []


def test_a_case_fails_in_the_places_where_it_fails(ground: Targets, server: ModelServer) -> None:
    server.defect = at("/shares/alpha/.*/version", answer(500))
    [outcome] = run_cases(select_cases(["versions.the-version-is-a-header"]), ground)
    assert (outcome.verdict, outcome.tried, len(outcome.sentences)) == (FAILED, 4, 3)


def test_a_strange_answer_fails_a_case_and_ends_no_run(ground: Targets, server: ModelServer) -> None:
    server.defect = at(
        METADATA, each("metaData", put(partitionColumns=[["x"]], configuration=[1], schemaString=5))
    )
    cases = select_cases(["metadata", "snapshots", "predicates.*-leave-files-out", "limits.*-leaves-*"])
    outcomes = run_cases(cases, ground)
    assert any(outcome.verdict == FAILED for outcome in outcomes)
    assert len(outcomes) == len(cases)


def test_reports_hold_neither_the_token_nor_signatures(ground: Targets, server: ModelServer) -> None:
    server.defect = at(f"{DATA}|{QUERY}", answer(500, b"see https://store/x?X-Amz-Signature=secret-of-it"))
    report = a_report(
        ground, *run_cases(select_cases(["data-files", "snapshots", "limits", "authentication"]), ground)
    )
    text = json.dumps(report.as_json()) + "\n".join(report.text())
    assert "status 200" in text
    assert TOKEN not in text
    assert "Signature" not in text


def test_what_is_shown_is_short_and_on_one_line() -> None:
    assert format_value("a\nb") == "a b"
    assert len(format_value({"a": ["x"] * 1000})) == 200
    assert format_value(b"\xff") == repr(b"\xff")
