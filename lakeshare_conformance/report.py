"""All cases, in the order they are tried and reported."""

import json
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from lakeshare_conformance.case import (
    MUST,
    SECTIONS,
    Case,
    ExpectationFailed,
    Level,
    NotApplicable,
    Trial,
    format_value,
)
from lakeshare_conformance.cases.access import AUTHENTICATION, BAD_REQUESTS, CREDENTIALS, OTHER_PROFILES
from lakeshare_conformance.cases.changes import CHANGE_BOUNDS, CHANGES
from lakeshare_conformance.cases.files import DATA_FILES, DELETION_VECTORS, FILE_IDS
from lakeshare_conformance.cases.listings import LISTING_PAGES, LISTINGS
from lakeshare_conformance.cases.metadata import METADATA_GROUP, NEGOTIATION, VERSIONS
from lakeshare_conformance.cases.paging import ASYNC_QUERIES, END_STREAM, PAGING, REFRESH
from lakeshare_conformance.cases.predicates import FRAGMENTS, LIMITS, PREDICATES
from lakeshare_conformance.cases.snapshots import DELTA_FORMAT, SNAPSHOTS, TIME_TRAVEL, WINDOWS
from lakeshare_conformance.client import BadOption
from lakeshare_conformance.targets import Targets

GROUPS = (
    AUTHENTICATION,
    OTHER_PROFILES,
    LISTINGS,
    LISTING_PAGES,
    VERSIONS,
    METADATA_GROUP,
    NEGOTIATION,
    SNAPSHOTS,
    DELTA_FORMAT,
    DELETION_VECTORS,
    DATA_FILES,
    TIME_TRAVEL,
    WINDOWS,
    CHANGES,
    CHANGE_BOUNDS,
    PAGING,
    REFRESH,
    END_STREAM,
    FILE_IDS,
    ASYNC_QUERIES,
    PREDICATES,
    LIMITS,
    CREDENTIALS,
    BAD_REQUESTS,
    FRAGMENTS,
)


def list_cases() -> tuple[Case, ...]:
    """The whole suite."""
    return tuple(case for group in GROUPS for case in group.cases)


def select_cases(patterns: Sequence[str]) -> tuple[Case, ...]:
    """The cases whose name or group fits one of the patterns (`paging.*`, `*head*`); all for no pattern.

    Raises:
        BadOption: none does.
    """
    if not patterns:
        return list_cases()
    found = tuple(
        case for case in list_cases() if any(_matches_pattern(case, pattern) for pattern in patterns)
    )
    if not found:
        raise BadOption("--only", ", ".join(patterns), "No case has such a name; --list names them all.")
    return found


def group_titles() -> dict[str, str]:
    """What each group is about."""
    return {group.name: group.title for group in GROUPS}


def _matches_pattern(case: Case, pattern: str) -> bool:
    return fnmatch(case.name, pattern) or case.group == pattern


OnCase = Callable[[int, int, Case], None]


class Verdict(StrEnum):
    """What came of a case."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


PASSED, FAILED, NOT_APPLICABLE = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_APPLICABLE


@dataclass(frozen=True)
class Outcome:
    """The verdict of a case: on how many places it was tried, and a sentence for each place where it failed."""

    case: Case
    verdict: Verdict
    tried: int
    sentences: tuple[str, ...] = ()
    reason: str = ""
    elapsed_s: float = 0.0

    @property
    def fails_the_run(self) -> bool:
        """Whether a `must` failed."""
        return self.verdict == FAILED and self.case.level == MUST


def run_cases(cases: Sequence[Case], targets: Targets, watch: OnCase | None = None) -> list[Outcome]:
    """Try cases one after another; `watch` is told of each before it is tried."""
    outcomes = []
    for number, case in enumerate(cases, 1):
        if watch is not None:
            watch(number, len(cases), case)
        outcomes.append(_try(case, targets))
    return outcomes


def _try(case: Case, targets: Targets) -> Outcome:
    began = time.monotonic()
    passed, sentences, reasons = 0, [], []
    try:
        trials = list(case.trials(targets))
    except ExpectationFailed as error:
        # What is there to try it on could not even be found out.
        trials, sentences = [], [str(error)]
    for trial in trials:
        sentence, reason = _run_trial(trial)
        if sentence:
            sentences.append(f"{sentence} ({case.section})")
        elif reason:
            reasons.append(reason)
        else:
            passed += 1
    verdict = FAILED if sentences else PASSED if passed else NOT_APPLICABLE
    reason = "" if verdict != NOT_APPLICABLE else (reasons or [case.lacking])[0]
    elapsed_s = round(time.monotonic() - began, 3)
    return Outcome(case, verdict, passed + len(sentences), tuple(sentences), reason, elapsed_s)


def _run_trial(trial: Trial) -> tuple[str, str]:
    """The sentence of a failure, the reason why there was nothing to try, or neither."""
    try:
        trial.run()
    except ExpectationFailed as error:
        return str(error), ""
    except NotApplicable as nothing:
        return "", str(nothing)
    except Exception as error:
        # A strange answer is the server's failure, and no reason to end the run.
        return (
            f"{trial.place}: expected an answer that can be judged, came {type(error).__name__}: "
            f"{format_value(str(error))}",
            "",
        )
    return "", ""


MAX_SENTENCES = 3
# Characters that XML 1.0 cannot hold in any spelling.
_CONTROLS = (*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000))
_NOT_IN_XML = dict.fromkeys(_CONTROLS, "\ufffd")


@dataclass(frozen=True)
class Report:
    """A finished run."""

    targets: Targets
    outcomes: Sequence[Outcome]
    started_at: datetime
    elapsed_s: float

    @property
    def failed(self) -> bool:
        """Whether a `must` failed."""
        return any(outcome.fails_the_run for outcome in self.outcomes)

    def text(self) -> Iterator[str]:
        """The report for people, line by line."""
        yield f"{self.targets.server.profile.endpoint}: {_tables(self.targets)}"
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
            "endpoint": self.targets.server.profile.endpoint,
            "startedAt": self.started_at.isoformat(),
            "elapsedS": round(self.elapsed_s, 3),
            "tables": [table.name for table in self.targets.tables],
            "tablesLeftOut": self.targets.left_out,
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
            counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
            yield f"{level.value:>10}: {counted}"
        verdict = "FAILED: a must does not hold" if self.failed else "passed: every must that applies holds"
        yield f"{verdict} ({len(self.outcomes)} cases in {self.elapsed_s:.1f} s)"


def format_cases(cases: Sequence[Case]) -> Iterator[str]:
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
        yield from (f"      {sentence}" for sentence in outcome.sentences[:MAX_SENTENCES])
        if len(outcome.sentences) > MAX_SENTENCES:
            yield f"      and in {len(outcome.sentences) - MAX_SENTENCES} more places"
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
    element = ET.SubElement(
        suite, "testcase", classname=case.group, name=case.name, time=f"{outcome.elapsed_s:.3f}"
    )
    if outcome.verdict == FAILED:
        failure = ET.SubElement(element, "failure", type=case.level.value, message=_xml(outcome.sentences[0]))
        failure.text = _xml("\n".join((case.promise, *outcome.sentences)))
    if outcome.verdict == NOT_APPLICABLE:
        ET.SubElement(element, "skipped", message=_xml(outcome.reason))


def _counts(outcomes: Sequence[Outcome], level: Level) -> dict[str, int]:
    counts = Counter(outcome.verdict for outcome in outcomes if outcome.case.level == level)
    return {verdict.value: counts[verdict] for verdict in Verdict}


def _tables(targets: Targets) -> str:
    names = ", ".join(table.name for table in targets.tables) or "no table"
    more = f", and {targets.left_out} more that were not tried (name one by --table)"
    return names + (more if targets.left_out else "")


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _xml(text: str) -> str:
    return text.translate(_NOT_IN_XML)


PAGE = Path("docs/reference/conformance.md")
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"


def with_tables(page: str) -> str:
    """The page with its tables made anew.

    Raises:
        ValueError: the page has no place for them.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN} and {END}")
    return "\n".join((before + BEGIN, *_reference_tables(), END + after))


def _reference_tables() -> Iterator[str]:
    titles = group_titles()
    group = ""
    for case in list_cases():
        if case.group != group:
            group = case.group
            yield from (
                "",
                f"### {group}",
                "",
                f"{titles[group]}.",
                "",
                "| case | level | sections | promise |",
                "|---|---|---|---|",
            )
        name = case.name.partition(".")[2]
        yield f"| `{name}` | {case.level} | {case.section} | {_cell(case.promise)} |"
    yield from ("", "## Sections", "", "| § | what it is about |", "|---|---|")
    for section, subject in SECTIONS.items():
        yield f"| {section} | {_cell(subject)} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
