"""Each case of the conformance suite passes on a server that keeps the protocol, and fails where its rule is broken.

The model server breaks one rule at a time; a case without a defect that it catches could not fail, which is a defect.
"""

from collections.abc import Iterator, Mapping, Sequence

import pytest

from lakeshare_conformance.client import Client
from lakeshare_conformance.report import FAILED, PASSED, Outcome, list_cases, run_cases, select_cases
from lakeshare_conformance.targets import discover_targets
from tests.builders.campaign import IS_CAMPAIGN
from tests.builders.fewer_predicates import ask_fewer_predicates
from tests.fakes.defects import (
    of_data_files,
    of_listings,
    of_metadata,
    of_pages,
    of_queries,
    of_snapshots,
    of_windows,
)
from tests.fakes.defects.tools import Defect, Named, at, sentence
from tests.fakes.model_server import ModelServer, a_model_server

GROUPS: Mapping[str, Mapping[str, Defect]] = {
    "authentication": of_listings.AUTHENTICATION,
    "other-profiles": of_listings.OTHER_PROFILES,
    "listings": of_listings.LISTINGS,
    "listing-pages": of_listings.LISTING_PAGES,
    "versions": of_listings.VERSIONS,
    "metadata": of_metadata.METADATAS,
    "negotiation": of_metadata.NEGOTIATION,
    "snapshots": of_snapshots.SNAPSHOTS,
    "delta-format": of_snapshots.DELTA_FORMAT,
    "deletion-vectors": of_data_files.DELETION_VECTORS,
    "data-files": of_data_files.DATA_FILES,
    "time-travel": of_snapshots.TIME_TRAVEL,
    "windows": of_windows.WINDOWS,
    "changes": of_windows.CHANGE,
    "change-bounds": of_windows.CHANGE_BOUNDS,
    "paging": of_pages.PAGING,
    "refresh": of_pages.REFRESH,
    "end-stream": of_pages.END_STREAM,
    "file-ids": of_pages.FILE_IDS,
    "async-queries": of_queries.ASYNC_QUERIES,
    "predicates": of_queries.PREDICATES,
    "limits": of_queries.LIMITS,
    "credentials": of_listings.CREDENTIAL,
    "bad-requests": of_listings.BAD_REQUESTS,
    "fragments": {
        case.name.partition(".")[2]: at(".*", sentence("no")) for case in select_cases(["fragments"])
    },
}
DEFECTS = {f"{group}.{name}": defect for group, defects in GROUPS.items() for name, defect in defects.items()}
FURTHER: Sequence[Named] = [
    *of_listings.FURTHER,
    *of_metadata.FURTHER,
    *of_snapshots.FURTHER,
    *of_data_files.FURTHER,
    *of_windows.FURTHER,
    *of_pages.FURTHER,
    *of_queries.FURTHER,
]
# A case fails if it fails on one table. Most defects show at the table with all kinds of columns; these need features.
FIRST_TABLES = dict.fromkeys(("delta-format", "deletion-vectors", "negotiation"), "main.vectors")
# It is about the profile, not about what the server answers.
OF_THE_PROFILE = {"authentication.the-profile-is-of-version-1"}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with a_model_server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ModelServer) -> Iterator[Client]:
    with Client(server.profile) as client:
        yield client


def run_with(
    server: ModelServer, client: Client, names: Sequence[str], defect: Defect | None, table: str | None = None
) -> list[Outcome]:
    server.defect = defect
    ground = discover_targets(
        client, server.profile, table=table, foreign=server.foreign, expired=server.expired
    )
    return run_cases(select_cases(names), ground)


@pytest.mark.campaign
def test_every_case_passes_on_a_server_that_keeps_the_protocol(
    server: ModelServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_fewer_predicates(monkeypatch)
    outcomes = run_with(server, client, [], None)
    assert [(one.case.name, one.sentences, one.reason) for one in outcomes if one.verdict != PASSED] == []
    assert len(outcomes) == len(list_cases())


def test_there_is_a_defect_for_every_case() -> None:
    assert sorted(DEFECTS) == sorted({case.name for case in list_cases()} - OF_THE_PROFILE)
    assert {name.partition(".")[0] for name, _ in FURTHER} <= set(GROUPS)


@pytest.mark.parametrize("group", GROUPS)
def test_the_cases_of_a_group_catch_what_breaks_their_rules(
    server: ModelServer, client: Client, group: str, subtests: pytest.Subtests
) -> None:
    """The defect of each case, and further ones of cases with several rules.

    They are looked for at one table, then at all tables, under `make campaign` at all at once. Predicates are asked of
    that one table alone; each must be caught there.
    """
    first = FIRST_TABLES.get(group, "main.Orders")
    tables = [first] if group == "predicates" else [None] if IS_CAMPAIGN else [first, None]
    defects = [(name, defect) for name, defect in DEFECTS.items() if name.startswith(f"{group}.")]
    defects += [(name, defect) for name, defect in FURTHER if name.startswith(f"{group}.")]
    for number, (name, defect) in enumerate(defects):
        with subtests.test(case=name, number=number):
            for table in tables:
                [outcome] = run_with(server, client, [name], defect, table)
                if outcome.verdict == FAILED:
                    break
            assert outcome.verdict == FAILED, outcome
            require_readable(outcome)


def require_readable(outcome: Outcome) -> None:
    """The sentence has what was expected, what came, and the section of the protocol."""
    for text in outcome.sentences:
        assert ": expected " in text
        assert ", came " in text
        assert "can be judged" not in text
        assert outcome.case.section in text
