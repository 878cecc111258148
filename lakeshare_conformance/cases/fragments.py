"""Sentences that the test suites of the shipped clients look for, in refusals that other cases judge."""

from collections.abc import Callable, Mapping

from lakeshare_conformance.case import (
    DELTA,
    OPTIONAL,
    PARQUET,
    Case,
    NothingToTry,
    expect,
    on_tables,
    on_views,
)
from lakeshare_conformance.client import Answer
from lakeshare_conformance.ground import Table, View

Ask = Callable[[View], Answer]
NOON = "2022-01-01T12:00:00Z"


def _query(**body: object) -> Ask:
    return lambda view: view.ask(body)


def _changes(**params: object) -> Ask:
    return lambda view: view.ask_changes(params)


def _beyond(name: str) -> Ask:
    return lambda view: view.ask({**_history(view), name: view.table.latest + 1000})


def _of_history(ask: Ask) -> Ask:
    """A request that only a table with history refuses for this reason."""

    def of_history(view: View) -> Answer:
        _history(view)
        return ask(view)

    return of_history


def _of_changes(ask: Ask) -> Ask:
    def of_changes(view: View) -> Answer:
        view.change_start  # noqa: B018 - raises when changes are not served
        return ask(view)

    return of_changes


def _history(view: View) -> Mapping[str, object]:
    return {"startingVersion": view.versions[-1]}


def _page_token(view: View) -> str:
    token = (view.query(maxFiles=1).end or {}).get("nextPageToken")
    if not token:
        raise NothingToTry("no answer comes in two pages")
    return str(token)


def _page(view: View) -> Answer:
    _page_token(view)
    return view.ask({"maxFiles": 1, "pageToken": "nonsense"})


def _refresh(view: View) -> Answer:
    if not (view.query(includeRefreshToken=True).end or {}).get("refreshToken"):
        raise NothingToTry("the server gives no refresh tokens")
    return view.ask({"refreshToken": "nonsense"})


SENTENCES: Mapping[str, tuple[str, Ask]] = {
    "two_versions": (
        "Please only provide one of: version,timestamp,startingVersion",
        _query(version=0, startingVersion=0),
    ),
    "negative_version": ("table version cannot be negative", _of_history(_query(version=-1))),
    "negative_start": ("startingVersion cannot be negative", _of_history(_query(startingVersion=-1))),
    "no_files_on_a_page": ("maxFiles must be positive", _query(maxFiles=0)),
    "a_window_turned_round": (
        "startingVersion(3) must be smaller than or equal to endingVersion(2)",
        _of_history(_query(startingVersion=3, endingVersion=2)),
    ),
    "an_end_too_late": ("End version cannot be greater than the latest version", _beyond("endingVersion")),
    "a_time_that_is_none": ("Invalid startingTimestamp:", _of_history(_query(timestamp="2022"))),
    "a_time_too_early": (
        "before the earliest available version",
        _of_history(_query(timestamp="1970-01-02T00:00:00Z")),
    ),
    "a_time_too_late": (
        "is after the latest available version",
        _of_history(_query(timestamp="2999-01-01T00:00:00Z")),
    ),
    "a_refresh_token_of_a_version": (
        "includeRefreshToken cannot be used when querying a specific version",
        _of_history(lambda view: view.ask({"includeRefreshToken": True, "version": view.versions[-1]})),
    ),
    "a_refresh_token_asked_for_later": (
        "must be used in the first page request",
        lambda view: view.ask({"maxFiles": 1, "pageToken": _page_token(view), "includeRefreshToken": True}),
    ),
    "a_page_token_nobody_gave": ("Error decoding the page token", _page),
    "a_refresh_token_nobody_gave": ("Error decoding refresh token", _refresh),
    "an_unknown_scheme_of_ids": ("Unsupported fileidhash: '", lambda view: view.ask({}, fileidhash="md5")),
    "changes_without_a_start": (
        "No startingVersion or startingTimestamp provided for CDF read",
        _of_changes(_changes()),
    ),
    "changes_with_two_starts": (
        "Multiple starting arguments provided for CDF read",
        _of_changes(_changes(startingVersion=0, startingTimestamp=NOON)),
    ),
    "changes_with_two_ends": (
        "Multiple ending arguments",
        _of_changes(_changes(startingVersion=0, endingVersion=0, endingTimestamp=NOON)),
    ),
    "changes_turned_round": (
        "CDF range from start 1 to end 0 was invalid. End cannot be before start",
        _of_changes(_changes(startingVersion=1, endingVersion=0)),
    ),
    "changes_from_no_number": (
        "startingVersion is not a valid number",
        _of_changes(_changes(startingVersion="x")),
    ),
}


def _case(name: str, sentence: str, ask: Ask) -> Case:
    def judge(view: View) -> None:
        answer = ask(view)
        message = answer.refusal(400)
        expect(sentence in message, answer.asked, f"a refusal with “{sentence}”", message)

    judge.__name__, judge.__module__ = name, __name__
    judge.__doc__ = f"A refusal says “{sentence}”."
    return on_views(OPTIONAL, "1.7" if not name.startswith("changes") else "1.8", "7.3")(judge)


CASES = tuple(_case(name, *what) for name, what in SENTENCES.items())


@on_tables(OPTIONAL, "1.7", "7.3")
def a_history_that_is_not_shared(table: Table) -> None:
    """A refusal says “history sharing is not enabled on table: ” and the table's name."""
    view = table.first_view
    try:
        shared = bool(view.versions)
    except NothingToTry:
        shared = False
    if shared:
        raise NothingToTry("every table shares its history")
    answer = view.ask({"version": table.latest})
    sentence = (
        "Reading table by version or timestamp is not supported because history sharing is not enabled "
        f"on table: {table.name}"
    )
    message = answer.refusal(400)
    expect(sentence.lower() in message.lower(), answer.asked, f"“{sentence}”", message)


@on_tables(OPTIONAL, "2.5", "7.3")
def features_that_parquet_lacks(table: Table) -> None:
    """A refusal says “Unsupported Delta Table Properties”."""
    if table.view(PARQUET) is not None or table.view(DELTA) is None:
        raise NothingToTry("no table is served in delta format only")
    sentence = "Unsupported Delta Table Properties"
    for answer in (table.metadata(), table.query({})):
        message = answer.refusal(400)
        expect(sentence in message, answer.asked, f"“{sentence}”", message)


@on_tables(OPTIONAL, "4", "7.3")
def a_table_that_is_not_there(table: Table) -> None:
    """A refusal says “does not exist, please contact your share provider for further information.”"""
    answer = table.client.ask("GET", f"{table.path}_lakeshare/version")
    sentence = "does not exist, please contact your share provider for further information."
    message = answer.refusal(404)
    expect(sentence in message, answer.asked, f"“{sentence}”", message)
