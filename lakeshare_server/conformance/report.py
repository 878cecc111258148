"""What came of a run: a table for people, JSON for programs, JUnit for CI servers."""

import json
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lakeshare_server.conformance.case import Case, Level
from lakeshare_server.conformance.ground import Ground
from lakeshare_server.conformance.runner import FAILED, NOT_APPLICABLE, PASSED, Outcome, Verdict
from lakeshare_server.conformance.suite import group_titles

MOST_SENTENCES = 3
# Characters that XML 1.0 cannot hold in any spelling.
_CONTROLS = (*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000))
_NOT_IN_XML = dict.fromkeys(_CONTROLS, "\ufffd")


@dataclass(frozen=True)
class Report:
    """A finished run."""

    ground: Ground
    outcomes: Sequence[Outcome]
    started_at: datetime
    elapsed_s: float

    @property
    def failed(self) -> bool:
        """Whether a `must` failed."""
        return any(outcome.fails_the_run for outcome in self.outcomes)

    def text(self) -> Iterator[str]:
        """The report for people, line by line."""
        yield f"{self.ground.server.profile.endpoint}: {_tables(self.ground)}"
        yield f"{'':44}{'passed':>8}{'failed':>8}{'n/a':>6}"
        for group, outcomes in self._groups().items():
            counts = Counter(outcome.verdict for outcome in outcomes)
            title = f"{group} ({_lower(group_titles()[group])})"
            yield f"{_cut(title, 43):44}{counts[PASSED]:8}{counts[FAILED]:8}{counts[NOT_APPLICABLE]:6}"
            for outcome in outcomes:
                yield from _explained(outcome)
        yield from self._totals()

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "endpoint": self.ground.server.profile.endpoint,
            "startedAt": self.started_at.isoformat(),
            "elapsedS": round(self.elapsed_s, 3),
            "tables": [table.name for table in self.ground.tables],
            "tablesLeftOut": self.ground.left_out,
            "failed": self.failed,
            "counts": {level.value: _counts(self.outcomes, level) for level in Level},
            "cases": [_as_json(outcome) for outcome in self.outcomes],
        }

    def as_junit(self) -> ET.Element:
        """The report for CI servers: every case that failed is a failure there, of its level as type."""
        suites = ET.Element("testsuites", name="lakeshare conformance", time=f"{self.elapsed_s:.3f}")
        for group, outcomes in self._groups().items():
            counts = Counter(outcome.verdict for outcome in outcomes)
            suite = ET.SubElement(
                suites,
                "testsuite",
                name=group,
                tests=str(len(outcomes)),
                failures=str(counts[FAILED]),
                errors="0",
                skipped=str(counts[NOT_APPLICABLE]),
                time=f"{sum(outcome.elapsed_s for outcome in outcomes):.3f}",
            )
            for outcome in outcomes:
                _add_junit(suite, outcome)
        return suites

    def write_json(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n",
            encoding="utf-8",
            errors="replace",
        )

    def write_junit(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        ET.ElementTree(self.as_junit()).write(path, encoding="utf-8", xml_declaration=True)

    def _groups(self) -> Mapping[str, list[Outcome]]:
        groups: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault(outcome.case.group, []).append(outcome)
        return groups

    def _totals(self) -> Iterator[str]:
        for level in Level:
            counts = _counts(self.outcomes, level)
            told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            yield f"{level.value:>10}: {told}"
        verdict = "FAILED: a must does not hold" if self.failed else "passed: every must that applies holds"
        yield f"{verdict} ({len(self.outcomes)} cases in {self.elapsed_s:.1f} s)"


def listing(cases: Sequence[Case]) -> Iterator[str]:
    """The cases with their levels, sections and promises, for people who look for one."""
    group = ""
    for case in cases:
        if case.group != group:
            group = case.group
            yield f"{group}: {group_titles()[group]}"
        yield f"  {case.name}  [{case.level}; {case.section}]"
        yield f"      {case.promise}"


def _explained(outcome: Outcome) -> Iterator[str]:
    name = outcome.case.name.partition(".")[2]
    if outcome.verdict == FAILED:
        yield f"  FAILED {outcome.case.level}: {name}: {outcome.case.promise}"
        yield from (f"      {sentence}" for sentence in outcome.sentences[:MOST_SENTENCES])
        if len(outcome.sentences) > MOST_SENTENCES:
            yield f"      and in {len(outcome.sentences) - MOST_SENTENCES} more places"
    if outcome.verdict == NOT_APPLICABLE:
        yield f"  n/a {outcome.case.level}: {name}: {outcome.reason}"


def _as_json(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    return {
        "name": case.name,
        "group": case.group,
        "level": case.level.value,
        "sections": list(case.sections),
        "promise": case.promise,
        "verdict": outcome.verdict.value,
        "tried": outcome.tried,
        "sentences": list(outcome.sentences),
        "reason": outcome.reason,
        "elapsedS": outcome.elapsed_s,
    }


def _add_junit(suite: ET.Element, outcome: Outcome) -> None:
    case = outcome.case
    made = ET.SubElement(
        suite, "testcase", classname=case.group, name=case.name, time=f"{outcome.elapsed_s:.3f}"
    )
    if outcome.verdict == FAILED:
        failure = ET.SubElement(made, "failure", type=case.level.value, message=_xml(outcome.sentences[0]))
        failure.text = _xml("\n".join((case.promise, *outcome.sentences)))
    if outcome.verdict == NOT_APPLICABLE:
        ET.SubElement(made, "skipped", message=_xml(outcome.reason))


def _counts(outcomes: Sequence[Outcome], level: Level) -> dict[str, int]:
    counts = Counter(outcome.verdict for outcome in outcomes if outcome.case.level == level)
    return {verdict.value: counts[verdict] for verdict in Verdict}


def _tables(ground: Ground) -> str:
    names = ", ".join(table.name for table in ground.tables) or "no table"
    more = f", and {ground.left_out} more that were not tried (name one by --table)"
    return names + (more if ground.left_out else "")


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _xml(text: str) -> str:
    return text.translate(_NOT_IN_XML)
