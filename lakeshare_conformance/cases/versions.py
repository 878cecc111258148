"""The version of a table."""

from lakeshare_conformance.case import MUST, OPTIONAL, SHOULD, NothingToTry, expect, on_tables, on_views
from lakeshare_conformance.ground import Table, View

LONG_AGO, FAR_AHEAD = "1970-01-02T00:00:00Z", "2999-01-01T00:00:00Z"


@on_tables(MUST, "1.5", "0.7")
def the_version_is_a_header(table: Table) -> None:
    """The version call answers 200 with the header Delta-Table-Version, a whole number, and an empty body."""
    table.expect_readable()
    answer = table.version().expect_status(200)
    expect(answer.version >= 0, answer.asked, "a version from 0", answer.version)
    expect(answer.body == b"", answer.asked, "an empty body", answer.summary)


@on_tables(OPTIONAL, "1.1", "1.5")
def head_of_a_table_tells_its_version(table: Table) -> None:
    """HEAD of the table, which old clients send, answers the same header."""
    table.expect_readable()
    answer = table.ask("HEAD")
    if answer.status in (404, 405, 501):
        raise NothingToTry("the server does not answer HEAD of a table")
    version = answer.expect_status(200).version
    expect(version == table.latest, answer.asked, f"version {table.latest}", version)


@on_views(MUST, "1.0", "1.6", "1.7", "6.2")
def all_calls_tell_one_version(view: View) -> None:
    """Metadata and query answer the version that the version call tells, in the same header."""
    for reply in (view.metadata, view.snapshot):
        expect(reply.version == view.table.latest, reply.where, f"version {view.table.latest}", reply.version)


@on_views(MUST, "1.5")
def the_first_version_since_a_time_is_found(view: View) -> None:
    """startingTimestamp gives the earliest version at or after it: the first one for a time before all of them."""
    answer = view.table.version(startingTimestamp=LONG_AGO)
    versions = view.versions
    expect(
        answer.expect_status(200).version <= versions[0],
        answer.asked,
        f"at most {versions[0]}",
        answer.version,
    )


@on_views(MUST, "1.5", "0.19")
def a_time_after_all_versions_is_400(view: View) -> None:
    """startingTimestamp after the last commit is 400."""
    if view.versions:
        view.table.version(startingTimestamp=FAR_AHEAD).refusal(400)


@on_tables(MUST, "1.0", "1.5")
def a_time_that_is_none_is_400(table: Table) -> None:
    """A startingTimestamp that is not a time in ISO-8601 is 400."""
    for text in ("yesterday", "2022-13-01T00:00:00Z", "1700000000000", "2022-01-01T25:00:00Z"):
        table.version(startingTimestamp=text).refusal(400)


@on_views(SHOULD, "1.0")
def a_time_may_have_an_offset_and_fractions(view: View) -> None:
    """Times are taken with numeric offsets and with fractions of seconds, too."""
    wanted = (
        view.table.version(startingTimestamp=LONG_AGO).expect_status(200).version if view.versions else -1
    )
    for text in ("1970-01-02T00:00:00.123Z", "1970-01-02T00:00:00-08:00", "1970-01-02T05:30:00.000001+05:30"):
        answer = view.table.version(startingTimestamp=text).expect_status(200)
        expect(answer.version == wanted, answer.asked, f"version {wanted}", answer.version)


@on_tables(SHOULD, "1.0")
def a_date_alone_is_400(table: Table) -> None:
    """A date without a time of day is 400, as the reference server answers."""
    table.version(startingTimestamp="2022-01-01").refusal(400)
