"""Requests that make no sense: always a 4xx with a reason, never a fault of the server."""

from lakeshare_conformance.case import MUST, SHOULD, expect, on_server, on_tables, on_views
from lakeshare_conformance.client import Answer
from lakeshare_conformance.ground import Server, Table, View, at

TRACES = (b"Traceback (most recent", b'File "/', b"\tat java.", b"\tat org.", b"goroutine ", b"panicked at")
LONG_HEADER_BYTES = 60_000
NAMES = (
    "%00",
    "%ff%fe",
    "a" * 5000,
    "%2e%2e",
    "%2e%2e%2f%2e%2e%2fetc",
    "%0a",
    "'%22%3B--",
    "%C3%28",
    "*",
    "%",
)


@on_views(MUST, "1.7", "0.19")
def bodies_that_are_no_object_are_400(view: View) -> None:
    """A query whose body is not a JSON object is 400, in JSON."""
    for body in (b"{", b"[]", b'"x"', b"null", b"1", b"\xff\xfe", b"<query/>", b"[" * 20_000):
        view.ask(body).refusal(400)


@on_views(MUST, "1.7", "0.19")
def fields_of_other_types_are_400(view: View) -> None:
    """A field whose value is of another type is 400, in JSON."""
    for body in (
        b'{"version": "x"}',
        b'{"version": 1.5}',
        b'{"version": [1]}',
        b'{"version": true}',
        b'{"version": 99999999999999999999999}',
        b'{"version": -1}',
        b'{"timestamp": 1}',
        b'{"timestamp": "yesterday"}',
        b'{"startingVersion": {}}',
        b'{"startingVersion": -1}',
        b'{"limitHint": "ten"}',
        b'{"predicateHints": "a = 1"}',
        b'{"predicateHints": [1]}',
        b'{"jsonPredicateHints": {"op": "and"}}',
    ):
        view.ask(body).refusal(400)


@on_views(MUST, "1.7", "0.19")
def only_one_of_version_time_and_window(view: View) -> None:
    """More than one of version, timestamp and startingVersion is 400."""
    noon = "2022-01-01T12:00:00Z"
    for body in (
        {"version": 0, "timestamp": noon},
        {"version": 0, "startingVersion": 0},
        {"timestamp": noon, "startingVersion": 0},
    ):
        view.ask(body).refusal(400)


@on_server(MUST, "1.0", "0.19")
def strange_names_are_no_fault_of_the_server(server: Server) -> None:
    """Names with NUL, broken UTF-8, dots, slashes or thousands of characters are 4xx in every place."""
    for name in NAMES:
        for path in (
            f"/shares/{name}",
            f"/shares/{name}/schemas",
            f"/shares/{name}/schemas/{name}/tables/{name}/version",
        ):
            answer = server.client.ask("GET", path)
            expect(400 <= answer.status < 500, answer.asked, "a refusal by 4xx", answer.summary)


@on_tables(MUST, "1.0", "0.19")
def strange_parameters_are_no_fault_of_the_server(table: Table) -> None:
    """Parameters with broken UTF-8, NUL, enormous numbers or thousands of characters are 4xx."""
    for query in (
        "version?startingTimestamp=%ff%00",
        "version?startingTimestamp=" + "9" * 5000,
        "version?startingTimestamp=99999-01-01T00:00:00Z",
        "metadata?version=" + "9" * 400,
        "metadata?version=%00",
        "metadata?timestamp=%C3%28",
        "changes?startingVersion=" + "9" * 400,
        "changes?startingVersion=0&endingVersion=%ff",
        "changes?startingTimestamp=0000-00-00T00:00:00Z",
    ):
        _refused(table.ask("GET", f"/{query}"))


@on_server(MUST, "1.0", "0.19")
def long_headers_are_no_fault_of_the_server(server: Server) -> None:
    """Headers of 60 kB, in one header or in many, are answered or refused by 4xx, never by 5xx."""
    for headers in (
        {"delta-sharing-capabilities": "x" * LONG_HEADER_BYTES},
        {f"x-lakeshare-conformance-{number}": "x" * 500 for number in range(LONG_HEADER_BYTES // 500)},
    ):
        answer = server.client.ask("GET", "/shares", headers=headers)
        expect(answer.status < 500, answer.asked, "an answer, or a refusal by 4xx", answer.summary)


@on_server(SHOULD, "1.0", "1.1")
def what_is_no_endpoint_is_404_or_405(server: Server) -> None:
    """A path or a method that the protocol does not have is 404 or 405, in JSON."""
    for method, path in (
        ("GET", "/lakeshare"),
        ("DELETE", "/shares"),
        ("PUT", "/shares/x"),
        ("GET", "/shares/x/schemas/y/tables/z/query"),
    ):
        server.client.ask(method, path).refusal(404, 405)


@on_views(SHOULD, "1.0", "4")
def refusals_tell_no_secrets(view: View) -> None:
    """A refusal has no stack trace."""
    answers = (
        view.table.client.ask("GET", at("lakeshare_conformance_no_such_name")),
        view.ask(b"{"),
        view.ask({"version": view.table.latest + 1000}),
        view.ask({"jsonPredicateHints": 1}),
        view.ask_changes({}),
    )
    for answer in answers:
        found = [trace.decode() for trace in TRACES if trace in answer.body]
        expect(not found, answer.asked, "a refusal without a stack trace", found)


def _refused(answer: Answer) -> None:
    expect(400 <= answer.status < 500, answer.asked, "a refusal by 4xx", answer.summary)
