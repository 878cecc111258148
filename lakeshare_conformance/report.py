"""All cases in their order, a run of them, and its report: text, JSON, JUnit XML, and the tables of the reference."""

import json
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any

from lakeshare_conformance.case import (
    MUST,
    Case,
    ExpectationFailed,
    Group,
    Level,
    NotApplicable,
    format_value,
)
from lakeshare_conformance.cases import history, listings, metadata, paging, predicates, snapshots
from lakeshare_conformance.client import BadOption
from lakeshare_conformance.targets import Targets

GROUPS: tuple[type[Group], ...] = (
    *(listings.Authentication, listings.OtherProfiles, listings.Listings, listings.ListingPages),
    *(metadata.Versions, metadata.Metadata, metadata.Negotiation),
    *(snapshots.Snapshots, snapshots.DeltaFormat, snapshots.DeletionVectors, snapshots.DataFiles),
    *(history.TimeTravel, history.Windows, history.Changes, history.ChangeBounds),
    *(paging.Paging, paging.Refresh, paging.EndStream, snapshots.FileIds, paging.AsyncQueries),
    *(predicates.Predicates, predicates.Limits, listings.Credentials, listings.BadRequests),
    predicates.Fragments,
)
MAX_SENTENCES = 3
# Characters that XML 1.0 cannot represent.
_CONTROLS = (*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000))
_NOT_IN_XML = dict.fromkeys(_CONTROLS, "\ufffd")

OnCase = Callable[[int, int, Case], None]


def list_cases() -> tuple[Case, ...]:
    return tuple(case for group in GROUPS for case in group.cases)


def group_titles() -> dict[str, str]:
    return {group.name: group.title for group in GROUPS}


def select_cases(patterns: Sequence[str]) -> tuple[Case, ...]:
    """The cases whose name or group matches a pattern (`paging.*`), all without; raises BadOption if none matches."""
    found = tuple(
        case
        for case in list_cases()
        if not patterns or any(fnmatch(case.name, one) or case.group == one for one in patterns)
    )
    if not found:
        raise BadOption("--only", ", ".join(patterns), "No case has such a name; --list names them all.")
    return found


class Verdict(StrEnum):
    """The result of a case."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


PASSED, FAILED, NOT_APPLICABLE = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_APPLICABLE


@dataclass(frozen=True)
class Outcome:
    """The verdict of a case: the number of targets it was tried on, and a sentence for each where it failed."""

    case: Case
    verdict: Verdict
    tried: int
    sentences: tuple[str, ...] = ()
    reason: str = ""
    elapsed_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        of_case = {
            name: getattr(self.case, name) for name in ("name", "group", "level", "sections", "promise")
        }
        result = {name: getattr(self, name) for name in ("verdict", "tried", "sentences", "reason")}
        return {**of_case, **result, "elapsedS": self.elapsed_s}

    @property
    def fails_the_run(self) -> bool:
        return self.verdict == FAILED and self.case.level == MUST


def run_cases(cases: Sequence[Case], targets: Targets, watch: OnCase | None = None) -> list[Outcome]:
    """Run cases one after another; `watch` is called before each with its number, the total and the case."""
    outcomes = []
    for number, case in enumerate(cases, 1):
        if watch is not None:
            watch(number, len(cases), case)
        outcomes.append(_run_case(case, targets))
    return outcomes


def _run_case(case: Case, targets: Targets) -> Outcome:
    began, passed = time.monotonic(), 0
    sentences: list[str] = []
    reasons: list[str] = []
    try:
        for place, target in targets.select(case.target, case.formats):
            try:
                case.check(target)
                passed += 1
            except NotApplicable as error:
                reasons.append(str(error))
            except ExpectationFailed as error:
                sentences.append(f"{error} ({case.section})")
            except Exception as error:
                # A malformed response is a failure of the server, and no reason to end the run.
                actual = f"{type(error).__name__}: {format_value(str(error))}"
                expected = "expected an answer that can be judged"
                sentences.append(f"{place}: {expected}, came {actual} ({case.section})")
    except ExpectationFailed as error:
        # The targets could not be determined.
        sentences.append(f"{error} ({case.section})")
    verdict = FAILED if sentences else PASSED if passed else NOT_APPLICABLE
    reason = (reasons or [case.lacking])[0] if verdict == NOT_APPLICABLE else ""
    elapsed_s = round(time.monotonic() - began, 3)
    return Outcome(case, verdict, passed + len(sentences), tuple(sentences), reason, elapsed_s)


@dataclass(frozen=True)
class Report:
    """A finished run."""

    targets: Targets
    outcomes: Sequence[Outcome]
    started_at: datetime
    elapsed_s: float

    @property
    def failed(self) -> bool:
        return any(outcome.fails_the_run for outcome in self.outcomes)

    def text(self) -> Iterator[str]:
        """The lines of the report for people."""
        tables = ", ".join(table.name for table in self.targets.tables) or "no table"
        if self.targets.left_out:
            tables += f", and {self.targets.left_out} more that were not tried (name one by --table)"
        yield f"{self.targets.server.profile.endpoint}: {tables}"
        yield f"{'':44}{'passed':>8}{'failed':>8}{'n/a':>6}"
        titles = group_titles()
        for group, outcomes in self._groups():
            counts = Counter(outcome.verdict for outcome in outcomes)
            title = f"{group} ({titles[group][:1].lower()}{titles[group][1:]})"
            title = title if len(title) <= 43 else title[:42] + "…"
            yield f"{title:44}{counts[PASSED]:8}{counts[FAILED]:8}{counts[NOT_APPLICABLE]:6}"
            for outcome in outcomes:
                yield from _explain(outcome)
        for level in Level:
            counted = ", ".join(f"{count} {verdict}" for verdict, count in self._count(level).items())
            yield f"{level.value:>10}: {counted}"
        verdict = "FAILED: a must does not hold" if self.failed else "passed: every must that applies holds"
        yield f"{verdict} ({len(self.outcomes)} cases in {self.elapsed_s:.1f} s)"

    def as_json(self) -> dict[str, Any]:
        return {
            "endpoint": self.targets.server.profile.endpoint,
            "startedAt": self.started_at.isoformat(),
            "elapsedS": round(self.elapsed_s, 3),
            "tables": [table.name for table in self.targets.tables],
            "tablesLeftOut": self.targets.left_out,
            "failed": self.failed,
            "counts": {level.value: self._count(level) for level in Level},
            "cases": [outcome.as_json() for outcome in self.outcomes],
        }

    def as_junit(self) -> ET.Element:
        """The report for CI servers: every failed case is a failure, with its level as type."""
        suites = ET.Element("testsuites", name="lakeshare conformance", time=f"{self.elapsed_s:.3f}")
        for group, outcomes in self._groups():
            counts = Counter(outcome.verdict for outcome in outcomes)
            suite = ET.SubElement(suites, "testsuite", name=group, tests=str(len(outcomes)))
            suite.attrib |= {"failures": str(counts[FAILED]), "errors": "0"}
            suite.set("skipped", str(counts[NOT_APPLICABLE]))
            suite.set("time", f"{sum(outcome.elapsed_s for outcome in outcomes):.3f}")
            for outcome in outcomes:
                _add_junit_case(suite, outcome)
        return suites

    def write_json(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8", errors="replace")

    def write_junit(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        ET.ElementTree(self.as_junit()).write(path, encoding="utf-8", xml_declaration=True)

    def _groups(self) -> Iterator[tuple[str, list[Outcome]]]:
        for group, outcomes in groupby(self.outcomes, lambda outcome: outcome.case.group):
            yield group, list(outcomes)

    def _count(self, level: Level) -> dict[str, int]:
        counts = Counter(outcome.verdict for outcome in self.outcomes if outcome.case.level == level)
        return {verdict.value: counts[verdict] for verdict in Verdict}


def _explain(outcome: Outcome) -> Iterator[str]:
    name = outcome.case.short_name
    if outcome.verdict == FAILED:
        yield f"  FAILED {outcome.case.level}: {name}: {outcome.case.promise}"
        yield from (f"      {sentence}" for sentence in outcome.sentences[:MAX_SENTENCES])
        if len(outcome.sentences) > MAX_SENTENCES:
            yield f"      and in {len(outcome.sentences) - MAX_SENTENCES} more places"
    if outcome.verdict == NOT_APPLICABLE:
        yield f"  n/a {outcome.case.level}: {name}: {outcome.reason}"


def _add_junit_case(suite: ET.Element, outcome: Outcome) -> None:
    case = outcome.case
    element = ET.SubElement(suite, "testcase", classname=case.group, name=case.name)
    element.set("time", f"{outcome.elapsed_s:.3f}")
    if outcome.verdict == FAILED:
        message, *_ = texts = [text.translate(_NOT_IN_XML) for text in outcome.sentences]
        failure = ET.SubElement(element, "failure", type=case.level.value, message=message)
        failure.text = "\n".join((case.promise, *texts))
    if outcome.verdict == NOT_APPLICABLE:
        ET.SubElement(element, "skipped", message=outcome.reason.translate(_NOT_IN_XML))


def format_cases(cases: Sequence[Case]) -> Iterator[str]:
    """The cases with their levels, sections and promises, for `--list`."""
    for group, of_group in groupby(cases, lambda case: case.group):
        yield f"{group}: {group_titles()[group]}"
        for case in of_group:
            yield f"  {case.name}  [{case.level}; {case.section}]"
            yield f"      {case.promise}"


PAGE = Path("docs/reference/conformance.md")
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def with_tables(page: str) -> str:
    """The page of the reference with its tables replaced; raises ValueError if it lacks the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    lines = []
    for group in GROUPS:
        lines += ["", f"### {group.name}", "", f"{group.title}.", ""]
        lines += ["| case | level | sections | promise |", "|---|---|---|---|"]
        for case in group.cases:
            promise = case.promise.replace("|", "\\|").replace("<", "&lt;")
            lines.append(f"| `{case.short_name}` | {case.level} | {case.section} | {promise} |")
    return "\n".join((before + BEGIN, *lines, "", END + after))


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
