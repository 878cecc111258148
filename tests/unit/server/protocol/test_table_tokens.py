"""Page and refresh tokens open for the one recipient, table and question they were made for, and for nobody else."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshare_server.access.authentication import AccessTokens
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.iceberg_rest.scans import PlanTasks
from lakeshare_server.protocol.requests import parse_changes, parse_query
from lakeshare_server.protocol.tokens import (
    Page,
    Pager,
    PageRequest,
    Pin,
    TableTokens,
    TokenHolder,
    TokenSealer,
    require_same_table,
)

KEY = b"k" * 32
BOB = TokenHolder("bob", "flights")
QUESTION: dict[str, Any] = {"predicateHints": ["day > 1"], "limitHint": 10, "formats": ["parquet"]}
PAGE = Page(first=3, last=5, start=20_000, rows_wanted=7, latest=6, of="id")
PIN = Pin(3, "id")
TOKENS = TableTokens(KEY, 60, 60)
WORDS = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=", max_size=60)


def a_page_token(tokens: TableTokens = TOKENS, token_holder: TokenHolder = BOB) -> str:
    return tokens.page_token(token_holder, QUESTION, PAGE)


def a_refresh_token(tokens: TableTokens = TOKENS, token_holder: TokenHolder = BOB) -> str:
    return tokens.refresh_token(token_holder, PIN)


def page_of(token: str, token_holder: TokenHolder = BOB) -> Page:
    return TOKENS.page(token_holder, QUESTION, token)


def pin_of(token: str, token_holder: TokenHolder = BOB) -> Pin:
    return TOKENS.read_refresh_token(token_holder, token)


# How a token of the kind is made, how it is read, and how the protocol begins the refusal.
Kind = tuple[Callable[..., str], Callable[..., object], str]
KINDS: dict[str, Kind] = {
    "pageToken": (a_page_token, page_of, "Error decoding the page token"),
    "refreshToken": (a_refresh_token, pin_of, "Error decoding refresh token"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@given(
    st.builds(
        Page,
        of=st.text(),
        first=st.integers(0, 2**63 - 1),
        last=st.integers(0, 2**63 - 1),
        start=st.integers(0, 2**40),
        rows_wanted=st.none() | st.integers(1, 2**31),
        latest=st.integers(0, 2**63 - 1),
    )
)
def test_a_page_comes_back_as_it_was(page: Page) -> None:
    """protocol §1.7: page one's versions are pinned, and what the limit still wants."""
    assert TOKENS.page(BOB, QUESTION, TOKENS.page_token(BOB, QUESTION, page)) == page


@given(st.builds(Pin, version=st.integers(0, 2**63 - 1), of=st.text()))
def test_a_refresh_token_pins_its_version(pin: Pin) -> None:
    """protocol §0.16, §1.13: the version inside is the one that is read again."""
    assert TOKENS.read_refresh_token(BOB, TOKENS.refresh_token(BOB, pin)) == pin


def test_tokens_go_into_urls_as_they_are(kind: Kind) -> None:
    make, _, _ = kind
    assert set(make()) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def test_no_character_of_a_token_can_be_changed(kind: Kind) -> None:
    """protocol §1.7: tokens that do not decode."""
    make, read, refusal = kind
    token = make()
    for place, character in enumerate(token):
        other = token[:place] + ("A" if character != "A" else "B") + token[place + 1 :]
        if decoded(other) != decoded(token):
            with pytest.raises(BadRequest, match=refusal):
                read(other)


def decoded(token: str) -> bytes:
    """The last character of a token has bits that say nothing."""
    return base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))


@given(st.text(max_size=60) | WORDS | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_texts_of_nobodys_making_are_refused(text: str) -> None:
    """protocol §1.7: tokens that do not decode."""
    for _, read, refusal in KINDS.values():
        with pytest.raises(BadRequest, match=refusal):
            read(text)


def test_the_seal_of_one_kind_opens_no_other() -> None:
    """A listing's token, a page's and a refresh token are no stand-ins for each other."""
    _, listing = Pager(KEY, 1).page(
        "bob", "shares", PageRequest("0", None), lambda after, limit: [PageKey()] * limit
    )
    assert listing
    for text in (listing, a_page_token()):
        with pytest.raises(BadRequest, match="Error decoding refresh token"):
            pin_of(text)
    for text in (listing, a_refresh_token()):
        with pytest.raises(BadRequest, match="Error decoding the page token"):
            page_of(text)


class PageKey:
    """An entry of a listing."""

    key = 1


def test_a_server_with_another_key_opens_nothing(kind: Kind) -> None:
    make, read, refusal = kind
    with pytest.raises(BadRequest, match=refusal):
        read(make(TableTokens(b"o" * 32, 60, 60)))


def test_another_process_of_the_same_key_opens_it() -> None:
    again = TableTokens(KEY, 1, 1)
    assert again.page(BOB, QUESTION, a_page_token()) == PAGE
    assert again.read_refresh_token(BOB, a_refresh_token()) == PIN


def test_an_expired_token_is_refused_as_such(kind: Kind) -> None:
    """protocol §1.7: `The page token has expired`, `The refresh token has expired`."""
    make, read, _ = kind
    with pytest.raises(BadRequest, match=r"The (page|refresh) token has expired\."):
        read(make(TableTokens(KEY, -1, -1)))


def test_each_kind_has_its_own_life() -> None:
    tokens = TableTokens(KEY, -1, 60)
    assert pin_of(a_refresh_token(tokens)) == PIN
    with pytest.raises(BadRequest, match="expired"):
        page_of(a_page_token(tokens))


def test_a_token_of_another_table_is_refused_as_such(kind: Kind) -> None:
    """protocol §1.7: `The table specified in the … token does not match the table being queried`."""
    make, read, _ = kind
    words = r"The table specified in the (page|refresh) token does not match the table being queried"
    with pytest.raises(BadRequest, match=words):
        read(make(TOKENS, TokenHolder("bob", "trains")))


def test_a_token_of_the_table_that_stood_there_before_is_refused_as_such() -> None:
    """protocol §1.7: a followed table may be made anew at its place, with numbers of its own."""
    for kind in ("page", "refresh"):
        require_same_table(kind, "id", "id")
        with pytest.raises(
            BadRequest, match=f"The table specified in the {kind} token does not match the table"
        ):
            require_same_table(kind, "id", "another")


def test_a_token_of_another_recipient_does_not_open_at_all(kind: Kind) -> None:
    """Whoever is handed another's token is not told whether it was one."""
    make, read, refusal = kind
    with pytest.raises(BadRequest, match=refusal):
        read(make(TOKENS, TokenHolder("eve", "flights")))


OTHER_QUESTIONS: dict[str, dict[str, Any]] = {
    "another hint": {**QUESTION, "predicateHints": ["day > 2"]},
    "no hint": {key: value for key, value in QUESTION.items() if key != "predicateHints"},
    "another limit": {**QUESTION, "limitHint": 11},
    "a version": {**QUESTION, "version": 3},
    "another format": {**QUESTION, "formats": ["delta"]},
    "nothing": {},
}


@pytest.mark.parametrize("case", OTHER_QUESTIONS)
def test_a_page_of_another_question_is_refused_as_such(case: str) -> None:
    """protocol §1.7: `Query parameter mismatch detected for the next page query`."""
    with pytest.raises(BadRequest, match="Query parameter mismatch detected for the next page query"):
        TOKENS.page(BOB, OTHER_QUESTIONS[case], a_page_token())


@pytest.mark.parametrize(
    "same", [{"startingVersion": "0"}, {"startingVersion": "0", "endingVersion": "1"}], ids=["open", "closed"]
)
def test_a_page_of_the_change_data_feed_is_none_of_a_query(same: dict[str, str]) -> None:
    """Both count their places differently, however alike they are asked."""
    token = TOKENS.page_token(BOB, parse_changes(same).parameters, PAGE)
    assert TOKENS.page(BOB, parse_changes(same).parameters, token) == PAGE
    with pytest.raises(BadRequest, match="Query parameter mismatch"):
        TOKENS.page(BOB, parse_query(same).parameters, token)


def test_the_order_of_a_questions_fields_says_nothing() -> None:
    assert TOKENS.page(BOB, dict(reversed(QUESTION.items())), a_page_token()) == PAGE


@given(
    st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()))
)
def test_seals_give_back_what_was_said_and_no_other_purpose_can_read_it(said: dict[str, Any]) -> None:
    token = TokenSealer(KEY, "one").seal(said)
    assert TokenSealer(KEY, "one").open(token, dict) == said
    assert TokenSealer(KEY, "other").open(token, dict) is None


STAMP = {"recipient": "bob", "table": "flights", "until": 4_000_000_000}
GOOD_PAGE = {"first": 0, "last": 0, "start": 0}
# As another version of lakeshare may seal them, with the same key.
OTHER_SHAPES: list[dict[str, Any]] = [
    {},
    {**STAMP},
    {**STAMP, "until": "tomorrow", "question": "q", "page": GOOD_PAGE, "pin": {"version": 1, "of": ""}},
    {**STAMP, "until": None, "question": "q", "page": GOOD_PAGE, "pin": {"version": 1, "of": ""}},
    {**STAMP, "recipient": 7, "question": "q", "page": GOOD_PAGE, "pin": {"version": 1, "of": ""}},
    {**STAMP, "question": "q", "page": [], "pin": []},
    {**STAMP, "question": "q", "page": {**GOOD_PAGE, "start": "7"}, "pin": {"version": "1", "of": ""}},
    {**STAMP, "question": {}, "page": GOOD_PAGE, "pin": {"version": 1e300, "of": ""}},
]


@pytest.mark.parametrize("content", OTHER_SHAPES)
def test_sealed_content_of_another_shape_is_refused_and_no_fault(content: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="Error decoding the page token"):
        page_of(TokenSealer(KEY, "table page v1").seal(content))
    with pytest.raises(BadRequest, match="Error decoding refresh token"):
        pin_of(TokenSealer(KEY, "table refresh v1").seal(content))
    with pytest.raises(BadRequest, match="pageToken"):
        Pager(KEY, 1).page(
            "bob",
            "shares",
            PageRequest(None, TokenSealer(KEY, "listing page v2").seal(content)),
            lambda after, limit: [],
        )
    with pytest.raises(NotFound, match="plan-task"):
        PlanTasks(KEY, 60, 1 << 20).open(BOB, TokenSealer(KEY, "iceberg plan task v1").seal(content))
    assert AccessTokens(KEY, 60).read(TokenSealer(KEY, "access token").seal(content)) is None


@pytest.mark.parametrize("until", [10**18, -(10**18), 1e308, 0, True, "1", None])
def test_an_access_token_whose_end_is_no_time_of_ours_is_refused(until: object) -> None:
    token = TokenSealer(KEY, "access token").seal({"credential": "id", "until": until})
    assert AccessTokens(KEY, 60).read(token) is None


@pytest.mark.parametrize("question", ["", "x", "é", "0000000000"])
def test_a_plan_task_whose_question_cannot_be_read_is_refused(question: str) -> None:
    content = {**STAMP, "question": question, "task": {"snapshot_id": 1, "start": 0}}
    with pytest.raises(NotFound, match="plan-task"):
        PlanTasks(KEY, 60, 1 << 20).open(BOB, TokenSealer(KEY, "iceberg plan task v1").seal(content))


def test_refusals_say_what_to_do(kind: Kind) -> None:
    _, read, _ = kind
    with pytest.raises(BadRequest) as refused:
        read("x" * 500)
    assert refused.value.field in KINDS
    assert len(str(refused.value)) < 500
    assert "token" in refused.value.hint.lower()
