"""The closing line, for those who ask for it in the header."""

from contextlib import suppress

from lakeshare_conformance.case import (
    COUNT,
    MUST,
    OPTIONAL,
    TEXT,
    NothingToTry,
    expect,
    expect_fields,
    on_views,
)
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import END, Reply

ASKED = "includeendstreamaction=true"


@on_views(OPTIONAL, "1.11", "1.13")
def an_end_can_be_asked_for(view: View) -> None:
    """includeendstreamaction=true is honoured: echoed in the header, and the last line is endStreamAction."""
    reply = Reply(view.ask({}, ASKED))
    told = reply.answer.capabilities.get("includeendstreamaction")
    expect(told == "true", reply.where, "includeendstreamaction=true in the answer's header", told or "none")


@on_views(MUST, "1.11", "0.1")
def an_end_that_is_announced_comes(view: View) -> None:
    """The last line is endStreamAction just when the header of the answer says so, for a query and for changes."""
    replies = [Reply(view.ask({}, ASKED)), Reply(view.ask({}, "includeendstreamaction=false"))]
    # Where changes are not served, the query alone is tried.
    with suppress(NothingToTry):
        replies.append(Reply(view.ask_changes({"startingVersion": view.change_start}, ASKED)))
    for reply in replies:
        is_announced = reply.answer.capabilities.get("includeendstreamaction") == "true"
        kinds = [line.kind for line in reply.lines]
        is_fit = kinds[-1] == END and kinds.count(END) == 1 if is_announced else END not in kinds
        wanted = "endStreamAction as last line" if is_announced else "no endStreamAction"
        expect(is_fit, reply.where, wanted, kinds[-3:])


@on_views(MUST, "1.13")
def an_end_has_the_documented_fields(view: View) -> None:
    """endStreamAction has refreshToken, nextPageToken, minUrlExpirationTimestamp of their kinds, and no error here."""
    reply = Reply(view.ask({}, ASKED))
    if reply.end is None:
        raise NothingToTry("the server sends no endStreamAction")
    kinds = {"refreshToken": TEXT, "nextPageToken": TEXT, "minUrlExpirationTimestamp": COUNT}
    expect_fields(f"{reply.where}, endStreamAction", reply.end, {}, kinds)
    expect("errorMessage" not in reply.end, reply.where, "an answer that is whole", reply.end)
