"""Pages of the audit log: search, events with what they changed, export, and verifications of the chain."""

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Response
from starlette.responses import StreamingResponse

from lakeshare_server.access.authentication import Permission
from lakeshare_server.catalog import audit
from lakeshare_server.catalog.audit import ChainedEvent, Search
from lakeshare_server.catalog.audit.maintenance import event_line
from lakeshare_server.catalog.audit.verifications import list_verifications
from lakeshare_server.errors import BadRequest, NotFound
from lakeshare_server.pages.console.publications import parse_version, read_query_number
from lakeshare_server.pages.console.recipients import parse_moment
from lakeshare_server.pages.console.session import ConsoleRequest, PageDep, shown_on, with_form

EVENTS = 50
SEARCH_S = 0.12
SHOWN_VERIFICATIONS = 5
LINES_AT_ONCE = 500
# Fields of the form, and of a search.
TEXT_FILTERS = (
    ("recipient", "recipient", "Recipient"),
    ("principal", "principal", "Administrator"),
    ("action", "action", "Action"),
    ("object", "object_name", "Object"),
    ("request", "request_id", "Request"),
    ("ip", "ip", "Address"),
)
KINDS = (("", "All"), ("request", "Requests"), ("end", "Ends of responses"), ("change", "Changes"))
CSV_COLUMNS = (
    "number", "at", "kind", "recipient", "principal", "action", "object_name", "status", "error_code", "version",
    "files", "size_bytes", "rows", "request_id", "ip", "user_agent", "elapsed_ms", "details", "previous_hash", "hash",
)  # fmt: skip
# Spreadsheets take texts that begin with these for formulas.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

router = APIRouter()
VerifyDep = Annotated[ConsoleRequest, Depends(with_form(Permission.LOOK))]


def read_search(request: ConsoleRequest) -> Search:
    """The conditions in the query; raises BadRequest."""
    kind = request.query("kind") or None
    if kind is not None and kind not in get_args(audit.Kind):
        raise BadRequest("kind", kind, f"It is one of {', '.join(get_args(audit.Kind))}.")
    texts: dict[str, Any] = {name: request.query(field) or None for field, name, _ in TEXT_FILTERS}
    return Search(
        **texts,
        kind=kind,  # type: ignore[arg-type]  # one of its values, by the check above
        since=parse_moment("from", request.query("from")),
        until=parse_moment("until", request.query("until")),
        before=read_query_number(request, "before"),
        refused=request.query("refused") == "yes",
    )


def read_filters(request: ConsoleRequest) -> dict[str, str]:
    """The fields of the query that filter, for links to other pages of the same events."""
    names = [*(field for field, _, _ in TEXT_FILTERS), "kind", "from", "until", "refused"]
    return {name: request.query(name) for name in names if request.query(name)}


@router.get("/audit")
def list_events(request: PageDep) -> Response:
    return audit_page(request)


def audit_page(request: ConsoleRequest, **refused: Any) -> Response:
    page, status = None, refused.pop("status", 200)
    try:
        page = audit.find_events(request.app_state.catalog, read_search(request), EVENTS, SEARCH_S)
    except BadRequest as error:
        status, refused["problem"] = 400, error.for_provider()
    with request.app_state.catalog.reading() as session:
        runs = list_verifications(session, SHOWN_VERIFICATIONS)
    return request.render(
        "audit.html",
        status,
        page=page,
        filters=read_filters(request),
        texts=TEXT_FILTERS,
        kinds=KINDS,
        runs=runs,
        **refused,
    )


@router.post("/audit/verify")
@shown_on(audit_page)
def verify_events(request: VerifyDep) -> Response:
    """Starts a verification of the chain; it changes nothing."""
    request.app_state.verifications.start(request.administrator.name)
    return request.redirect("audit", done="started")


@router.get("/audit/export")
def export_events(request: PageDep) -> Response:
    """The events that match, oldest first, as JSON lines or CSV."""
    search, shape = read_search(request), request.query("as") or "jsonl"
    if shape not in ("jsonl", "csv"):
        raise BadRequest("as", shape, "It is jsonl or csv.")
    catalog = request.app_state.catalog
    newest = audit.newest_event_number(catalog)
    events = iter(audit.events_after(catalog, 0, search))
    # Read before the response begins: without a database the reader gets an error, and no empty file.
    first = list(islice(events, 1))
    bounded = (event for event in chain(first, events) if event.number <= newest)
    lines = format_csv(bounded) if shape == "csv" else map(event_line, bounded)
    kind = "text/csv; charset=utf-8" if shape == "csv" else "application/x-ndjson"
    headers = {"Content-Disposition": f'attachment; filename="audit.{shape}"'}
    return StreamingResponse(_join_lines(lines), headers=headers, media_type=kind)


def _join_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    while some := list(islice(lines, LINES_AT_ONCE)):
        yield b"".join(some)


def format_csv(events: Iterator[ChainedEvent]) -> Iterator[bytes]:
    """Lines of CSV with a header; texts that a spreadsheet would take for a formula begin with an apostrophe."""
    yield (",".join(CSV_COLUMNS) + "\n").encode()
    for event in events:
        fields = event.as_json()
        if fields["details"] is not None:
            fields["details"] = json.dumps(fields["details"], ensure_ascii=False)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow([_cell(fields[name]) for name in CSV_COLUMNS])
        yield text.getvalue().encode("utf-8", "replace")


def _cell(value: Any) -> Any:
    is_formula = isinstance(value, str) and value.startswith(FORMULA_STARTS)
    return f"'{value}" if is_formula else value


@dataclass(frozen=True)
class FieldChange:
    """A field of an object before and after a change; None where the object does not have it."""

    name: str
    before: str | None
    after: str | None

    @property
    def is_change(self) -> bool:
        return self.before != self.after


@router.get("/audit/{number}")
def show_event(request: PageDep, number: str) -> Response:
    """An event, and what it changed."""
    chained = audit.get_event(request.app_state.catalog, parse_version("the audit log", number))
    if chained is None:
        raise NotFound("Event", number)
    details = dict(chained.event.details or {})
    before, after = details.pop("before", None), details.pop("after", None)
    changes = list_changes(before, after)
    return request.render(
        "event.html",
        chained=chained,
        changes=[change for change in changes if change.is_change],
        unchanged=[change for change in changes if not change.is_change],
        details=list_changes(None, details),
    )


def list_changes(before: Any, after: Any) -> list[FieldChange]:
    """The fields of two states as texts; those of inner objects by their paths."""
    old, new = dict(_flatten(before)), dict(_flatten(after))
    return [FieldChange(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flatten(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list):
        yield path, ", ".join(item if isinstance(item, str) else json.dumps(item) for item in value)
    elif value is not None:
        yield path, value if isinstance(value, str) else json.dumps(value)
