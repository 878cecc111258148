"""Trying cases on a ground: every case gets a verdict, whatever a server answers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lakeshare_server.conformance.case import MUST, Broken, Case, NothingToTry, Trial, shown
from lakeshare_server.conformance.ground import Ground

Watch = Callable[[int, int, Case], None]


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


def run(cases: Sequence[Case], ground: Ground, watch: Watch | None = None) -> list[Outcome]:
    """Try cases one after another; `watch` is told of each before it is tried."""
    outcomes = []
    for number, case in enumerate(cases, 1):
        if watch is not None:
            watch(number, len(cases), case)
        outcomes.append(_try(case, ground))
    return outcomes


def _try(case: Case, ground: Ground) -> Outcome:
    began = time.monotonic()
    passed, sentences, reasons = 0, [], []
    try:
        trials = list(case.trials(ground))
    except Broken as error:
        # What is there to try it on could not even be found out.
        trials, sentences = [], [str(error)]
    for trial in trials:
        sentence, reason = _judge(trial)
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


def _judge(trial: Trial) -> tuple[str, str]:
    """The sentence of a failure, the reason why there was nothing to try, or neither."""
    try:
        trial.run()
    except Broken as error:
        return str(error), ""
    except NothingToTry as nothing:
        return "", str(nothing)
    except Exception as error:
        # A strange answer is the server's failure, and no reason to end the run.
        return (
            f"{trial.place}: expected an answer that can be judged, came {type(error).__name__}: {shown(str(error))}",
            "",
        )
    return "", ""
