"""What one recipient cannot see of another, and a token that has expired; tried with `--foreign` and `--expired`."""

from lakeshare_conformance.case import MUST, NothingToTry, expect, on_server
from lakeshare_conformance.client import Answer, Client
from lakeshare_conformance.ground import Server, Table

MOST_TABLES = 5
CALLS = (
    ("GET", "/version"),
    ("GET", "/metadata"),
    ("POST", "/query"),
    ("GET", "/changes?startingVersion=0"),
    ("POST", "/temporary-table-credentials"),
)


@on_server(MUST, "1.0", "4")
def what_others_see_does_not_exist(server: Server) -> None:
    """A share or table that only another recipient sees is 404, with the errorCode of a name that never existed."""
    tables = _hidden_tables(server)
    for table in tables:
        share, schema, name = table.names
        unknown = Table(server, share, schema, f"{name}_lakeshare_conformance")
        for method, below in CALLS:
            body: dict[str, object] | None = {} if method == "POST" else None
            hidden, missing = (one.ask(method, below, body=body) for one in (table, unknown))
            expect(missing.status < 500, missing.asked, "404, or another refusal by 4xx", missing.summary)
            if missing.status == 404:
                hidden.refusal(404)
                expect(
                    _error_code(hidden) == _error_code(missing),
                    hidden.asked,
                    f"the errorCode of a name that never was, {_error_code(missing)}",
                    _error_code(hidden),
                )
    for share in {table.names[0] for table in tables} - set(server.shares):
        for below in ("", "/schemas", "/all-tables"):
            answer = server.client.ask("GET", f"/shares/{share}{below}")
            if answer.status not in (405, 501):
                answer.refusal(404)


@on_server(MUST, "1.0", "4")
def an_expired_token_is_refused(server: Server) -> None:
    """A token that has expired is 401 (or 403), in JSON, for listings and tables."""
    if server.expired is None:
        raise NothingToTry("no profile with an expired token was given (--expired)")
    with Client(server.expired) as client:
        for path in server.listings:
            client.ask("GET", path).refusal(401, 403)
        for table in list(server.tables())[:MOST_TABLES]:
            client.ask("GET", f"{table.path}/version").refusal(401, 403)
            client.ask("POST", f"{table.path}/query", body={}).refusal(401, 403)


def _hidden_tables(server: Server) -> list[Table]:
    """Tables that the other recipient lists and this one does not.

    Raises:
        NothingToTry: no other profile was given, or there is no such table.
    """
    if server.foreign is None:
        raise NothingToTry("no profile of another recipient was given (--foreign)")
    own = {_key(table) for table in Server(server.client, server.profile).tables()}
    with Client(server.foreign) as client:
        foreign = list(Server(client, server.foreign).tables())
    hidden = [Table(server, *table.names) for table in foreign if _key(table) not in own]
    if not hidden:
        raise NothingToTry("the other recipient (--foreign) sees no table that this one does not")
    return hidden[:MOST_TABLES]


def _key(table: Table) -> tuple[str, ...]:
    return tuple(name.lower() for name in table.names)


def _error_code(answer: Answer) -> object:
    return answer.json_object().get("errorCode")
