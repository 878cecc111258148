"""The header fileidhash."""

from lakeshare_conformance.case import DELTA, MUST, PARQUET, NothingToTry, expect, on_views
from lakeshare_conformance.client import Answer
from lakeshare_conformance.ground import View
from lakeshare_conformance.reply import Reply

HEADER = "fileidhash"


@on_views(MUST, "1.12", "6.2")
def the_scheme_of_ids_is_echoed(view: View) -> None:
    """fileidhash parquet or delta, in any case, is echoed in lower case: who sent it insists on it."""
    for asked in (PARQUET, DELTA, "Parquet", "DELTA"):
        _expect_echo(view.ask({}, **{HEADER: asked}), asked)


@on_views(MUST, "1.12", "1.8")
def the_scheme_of_ids_is_echoed_with_changes(view: View) -> None:
    """fileidhash is echoed with changes, too."""
    for asked in (PARQUET, DELTA):
        _expect_echo(view.ask_changes({"startingVersion": view.change_start}, **{HEADER: asked}), asked)


@on_views(MUST, "1.12", "0.19")
def other_schemes_are_400(view: View) -> None:
    """Any other fileidhash is 400, also an empty one."""
    for asked in ("md5", "", "parquet,delta"):
        view.ask({}, **{HEADER: asked}).refusal(400)


@on_views(MUST, "1.12", "2.6", formats=(DELTA,))
def the_scheme_chooses_the_ids(view: View) -> None:
    """With fileidhash both formats answer the same ids for the same files; without it, those of their own format."""
    other = view.table.view(PARQUET)
    if other is None:
        raise NothingToTry("no table is served in both formats")
    for scheme, native in ((PARQUET, other), (DELTA, view)):
        for one in (view, other):
            reply = Reply(one.ask({}, **{HEADER: scheme}))
            expect(
                reply.ids == native.snapshot.ids,
                reply.where,
                f"the ids of {scheme} format",
                sorted(reply.ids)[:2],
            )


def _expect_echo(answer: Answer, asked: str) -> None:
    told = answer.expect_status(200).header(HEADER)
    expect(told == asked.lower(), answer.asked, f"{HEADER}: {asked.lower()}", told)
