"""Refresh tokens, an undocumented extension by which Spark renews URLs."""

from lakeshare_conformance.case import (
    MUST,
    NAME,
    OPTIONAL,
    NothingToTry,
    expect,
    expect_fields,
    on_tables,
    on_views,
)
from lakeshare_conformance.ground import Table, View
from lakeshare_conformance.reply import END, Reply


@on_views(OPTIONAL, "1.7", "1.13")
def a_refresh_token_is_given(view: View) -> None:
    """includeRefreshToken is answered with a refreshToken in the endStreamAction."""
    reply = view.query(includeRefreshToken=True)
    expect_fields(reply.where, reply.end or {}, {"refreshToken": NAME}, {})


@on_views(MUST, "0.1", "1.13")
def an_end_comes_last_and_once(view: View) -> None:
    """With includeRefreshToken an endStreamAction, if there is one, is the last line, and the only one."""
    kinds = [line.kind for line in view.query(includeRefreshToken=True).lines]
    is_fit = END not in kinds or (kinds.count(END) == 1 and kinds[-1] == END)
    expect(is_fit, view.query(includeRefreshToken=True).where, "endStreamAction as last line", kinds[-3:])


@on_views(MUST, "0.16", "4")
def a_refreshed_answer_has_the_same_files(view: View) -> None:
    """With refreshToken the same version is answered again: every id that was handed out, and a token to go on."""
    first, token = _token(view)
    for _ in range(2):
        reply = Reply(view.ask({"refreshToken": token, "includeRefreshToken": True}))
        expect(reply.version == first.version, reply.where, f"version {first.version}", reply.version)
        expect(reply.ids == first.ids, reply.where, "the same ids", sorted(reply.ids ^ first.ids))
        expect_fields(reply.where, reply.end or {}, {"refreshToken": NAME}, {})
        token = str((reply.end or {})["refreshToken"])


@on_views(MUST, "1.7", "0.19")
def refresh_tokens_nobody_gave_are_400(view: View) -> None:
    """A refresh token that the server did not give, or that was altered, is 400."""
    _, token = _token(view)
    middle = len(token) // 2
    altered = token[:middle] + ("B" if token[middle] != "B" else "C") + token[middle + 1 :]
    for wrong in ("nonsense", altered, "é", 1):
        view.ask({"refreshToken": wrong}).refusal(400)


@on_views(MUST, "1.7", "0.16")
def a_refresh_token_stands_alone(view: View) -> None:
    """refreshToken beside a version, a time or a window is 400: it has its version in it."""
    _, token = _token(view)
    for more in ({"version": 0}, {"timestamp": "2022-01-01T00:00:00Z"}, {"startingVersion": 0}):
        view.ask({"refreshToken": token, **more}).refusal(400)


@on_tables(MUST, "1.7")
def a_refresh_token_belongs_to_its_table(table: Table) -> None:
    """A refresh token is refused by every other table: 400."""
    view = table.first_view
    _, token = _token(view)
    for other in table.other_views[:5]:
        other.ask({"refreshToken": token}).refusal(400)


def _token(view: View) -> tuple[Reply, str]:
    reply = view.query(includeRefreshToken=True)
    token = (reply.end or {}).get("refreshToken")
    if not isinstance(token, str) or not token:
        raise NothingToTry("the server gives no refresh tokens")
    return reply, token
