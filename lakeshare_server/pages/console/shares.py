"""Pages of shares: the tables of the lake, what is shared with whom, rules, and the difference from files."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from lakeshare_server.access.rules import bind_properties, find_properties, known_properties, parse_rule
from lakeshare_server.catalog import declared, overviews, sharing, states
from lakeshare_server.catalog.sharing import Edit
from lakeshare_server.errors import BadRequest, DocumentError, LakeshareError, NotFound
from lakeshare_server.pages.console.comparison import make_provider_request
from lakeshare_server.pages.console.jobs import ConsoleWork
from lakeshare_server.pages.console.pipelines import CONTRACTS
from lakeshare_server.pages.console.recipients import read_moment, read_number, read_texts
from lakeshare_server.pages.console.session import (
    SHOWN_IN_FORMS,
    ChangeDep,
    ConsoleRequest,
    PageDep,
    SharePageDep,
    shown_on,
)
from lakeshare_server.pages.portal import Previews
from lakeshare_server.provider.following import prefetch_versions
from lakeshare_server.provider.serveability import TableServeability, make_unshared_entry, provider_view
from lakeshare_server.provider.usage import DayUsage
from lakeshare_server.tables.predicates import Predicate
from lakeshare_server.text_fields import TEXT_FIELDS

# Indexes that were not read since the last change of the catalog are opened first.
MEASURE_S = 0.12
CONTRACTS_S = 10.0
AT_ONCE = 8
UNPUBLISHED = "It is not published yet, or not at the number that it is pinned to."

router = APIRouter()


@router.get("/shares")
def list_shares(request: PageDep) -> Response:
    return shares_page(request)


def shares_page(request: ConsoleRequest, **refused: Any) -> Response:
    with request.app_state.catalog.reading() as session:
        page = overviews.find_shares(session, request.query("q"), request.query("after"))
    return request.render("shares.html", page=page, texts=TEXT_FIELDS["share"], **refused)


@router.post("/shares")
@shown_on(shares_page)
def create_share(request: ChangeDep) -> Response:
    with request.editing() as edit:
        texts = read_texts(request, TEXT_FIELDS["share"])
        share = sharing.create_share(edit, request.value("name"), **texts)
    return request.redirect("shares", share.name, done="created")


@router.get("/shares/{share}")
def show_share(request: PageDep, share: str) -> Response:
    return share_page(request, share)


def share_page(request: ConsoleRequest, share: str, **refused: Any) -> Response:
    altered = refused.pop("schema", None), refused.pop("table", None)
    with request.app_state.catalog.reading() as session:
        state = states.get_share(session, share)
        tables = overviews.find_objects(session, share, request.query("q"), request.query("after"))
        grants = overviews.find_grants(session, share, request.query("reader"), request.query("after_reader"))
        of_groups = overviews.list_group_grants(session, share)
        readers = overviews.count_readers(session, share)
    return request.render(
        "share.html",
        share=state,
        tables=tables,
        grants=grants,
        group_grants=of_groups,
        readers=readers,
        texts=TEXT_FIELDS["share"],
        now=datetime.now(UTC),
        altered=altered,
        **refused,
    )


@router.post("/shares/{share}")
@shown_on(share_page)
def alter_share(request: ChangeDep, share: str) -> Response:
    with request.editing() as edit:
        texts = read_texts(request, TEXT_FIELDS["share"])
        sharing.alter_share(edit, share, revision=request.revision, **texts)
    return request.redirect("shares", share, done="changed")


@router.post("/shares/{share}/drop")
@shown_on(share_page)
def drop_share(request: ChangeDep, share: str) -> Response:
    with request.editing() as edit:
        sharing.drop_share(edit, share, revision=request.revision)
    return request.redirect("shares", done="removed")


@router.post("/shares/{share}/tables")
@shown_on(share_page)
def add_table(request: ChangeDep, share: str) -> Response:
    lake_table = request.value("lake_table")
    schema, _, name = (request.text("alias") or lake_table).rpartition(".")
    shared = states.SharedTable(schema, name, lake_table, **_table_terms(request))
    with _editing(request, share, [lake_table]) as edit:
        sharing.add_table(edit, share, shared, revision=request.revision)
    return request.redirect("shares", share, done="created")


@router.post("/shares/{share}/tables/{schema}/{table}")
@shown_on(share_page)
def alter_table(request: ChangeDep, share: str, schema: str, table: str) -> Response:
    with _editing(request, share) as edit:
        sharing.alter_table(edit, share, schema, table, revision=request.revision, **_table_terms(request))
    return request.redirect("shares", share, done="changed")


@router.post("/shares/{share}/tables/{schema}/{table}/remove")
@shown_on(share_page)
def remove_table(request: ChangeDep, share: str, schema: str, table: str) -> Response:
    with request.editing() as edit:
        sharing.remove_table(edit, share, schema, table, revision=request.revision)
    return request.redirect("shares", share, done="removed")


@contextmanager
def _editing(request: ConsoleRequest, share: str, tables: Sequence[str] = ()) -> Iterator[Edit]:
    """An edit of a share whose rules are checked; followed tables are read before its transaction begins."""
    app_state = request.app_state
    prefetch_versions(
        app_state.catalog, app_state.versions, share, tables, writes_rule=request.text("rule") is not None
    )
    with request.editing() as edit:
        yield edit


def _table_terms(request: ConsoleRequest) -> dict[str, Any]:
    return {
        "comment": request.text("comment"),
        "history": request.value("history") == "yes",
        "start_version": read_number(request, "start_version"),
        "rule": request.text("rule"),
        "publication": read_number(request, "publication"),
    }


@router.post("/shares/{share}/grants")
@shown_on(share_page)
def grant(request: ChangeDep, share: str) -> Response:
    """Grants the share to a recipient or a group, or replaces the terms of the grant."""
    with _editing(request, share) as edit:
        sharing.grant(
            edit,
            share,
            recipient=request.text("recipient"),
            group=request.text("group"),
            starts_at=read_moment(request, "starts_at"),
            ends_at=read_moment(request, "ends_at"),
            rule=request.text("rule"),
            revision=request.revision,
        )
    return request.redirect("shares", share, done="granted")


@router.post("/shares/{share}/grants/revoke")
@shown_on(share_page)
def revoke(request: ChangeDep, share: str) -> Response:
    with request.editing() as edit:
        sharing.revoke(
            edit,
            share,
            recipient=request.text("recipient"),
            group=request.text("group"),
            revision=request.revision,
        )
    return request.redirect("shares", share, done="revoked")


@dataclass(frozen=True)
class RuleEffect:
    """What a rule leaves of the newest version of a table, or why it cannot be applied; sizes in bytes."""

    path: str
    files: int = 0
    files_left: int = 0
    rows: int = 0
    rows_left: int = 0
    size_left: int = 0
    problem: str | None = None


@router.get("/shares/{share}/rule")
async def try_rule(request: PageDep, share: str) -> Response:
    """What a rule leaves of each table of a share, and its first rows in one of them, without granting anything."""
    state, tables = await run_in_threadpool(_find_objects, request, share)
    problem, effects, rows = None, list[RuleEffect](), None
    try:
        if request.query("rule"):
            rule = await run_in_threadpool(_read_rule, request)
            effects = await _measure_some(request, tables.items, rule)
            rows = await _preview_rule(request, tables.items, rule)
    except SHOWN_IN_FORMS as error:
        problem = error.for_provider()
    following = tables.next
    if len(effects) < len(tables.items):
        following = tables.items[len(effects) - 1].alias.lower() if effects else None
    return request.render(
        "rule.html", share=state, effects=effects, following=following, preview=rows, problem=problem
    )


def _read_rule(request: ConsoleRequest) -> Predicate:
    """The rule of the query, for its recipient if it names one. Raises BadRequest or NotFound."""
    rule = parse_rule(request.query("rule"))
    names, known = find_properties(rule), dict[str, Any]()
    if request.query("recipient"):
        with request.app_state.catalog.reading() as session:
            recipient = states.get_recipient(session, request.query("recipient"))
        known = known_properties(recipient.name, recipient.id, recipient.properties)
    missing = sorted(names - known.keys())
    if missing:
        hint = f"It names {', '.join(missing)}: try it for a recipient that has it as a property."
        raise BadRequest("recipient", request.query("recipient"), hint)
    return bind_properties(rule, known)


async def _preview_rule(
    request: ConsoleRequest, entries: Sequence[states.SharedTable], rule: Predicate
) -> Mapping[str, Any] | None:
    """The first rows that a rule leaves of the table of the query's `rows`, for those who may share."""
    entry = next((entry for entry in entries if entry.alias == request.query("rows")), None)
    if entry is None or not request.may("SHARE"):
        return None
    previews: Previews = request.http_request.app.state.server.state.previews
    view = replace(provider_view(entry, request.app_state.versions), rule=rule)
    table_request = await run_in_threadpool(make_provider_request, request, view)
    async with previews.turns(view.services):
        return await table_request.run(previews.preview, table_request)


def _find_objects(
    request: ConsoleRequest, share: str
) -> tuple[states.Share, overviews.Page[states.SharedTable]]:
    with request.app_state.catalog.reading() as session:
        state = states.get_share(session, share)
        return state, overviews.find_objects(session, share, after=request.query("after"))


async def _measure_some(
    request: ConsoleRequest, entries: Sequence[states.SharedTable], rule: Predicate
) -> list[RuleEffect]:
    """The effects on the first tables, on as many as can be measured in `MEASURE_S`, and at least on `AT_ONCE`."""
    effects, ends_at = list[RuleEffect](), time.monotonic() + MEASURE_S
    for first in range(0, len(entries), AT_ONCE):
        some = entries[first : first + AT_ONCE]
        effects += await asyncio.gather(*(_measure(request, entry, rule) for entry in some))
        if time.monotonic() > ends_at:
            break
    return effects


async def _measure(request: ConsoleRequest, entry: states.SharedTable, rule: Predicate) -> RuleEffect:
    """Measures in the pool of the table's services: a store that does not respond delays no other table."""
    view = provider_view(entry, request.app_state.versions)

    def measure() -> RuleEffect:
        version = view.latest()
        whole, left = view.index(version).header, replace(view, rule=rule).index(version).header
        return RuleEffect(entry.path, whole.files, left.files, whole.rows, left.rows, left.size_bytes)

    try:
        return await request.app_state.pools.run(view.services, measure)
    except NotFound:
        return RuleEffect(entry.path, problem=UNPUBLISHED)
    except LakeshareError as error:
        return RuleEffect(entry.path, problem=error.for_provider())


@router.get("/tables")
def list_tables(request: PageDep) -> Response:
    """The tables of the lake, published and followed, and where they are shared."""
    with request.app_state.catalog.reading() as session:
        page = overviews.find_tables(session, request.query("q"), request.query("after"))
    return request.render("tables.html", page=page)


@router.get("/tables/{table}")
async def show_table(request: PageDep, table: str) -> Response:
    """How the newest version of a table of the lake is served to each client, and why not."""
    app_state = request.app_state
    paths = await run_in_threadpool(_find_paths, request, table)
    view = provider_view(make_unshared_entry(table), app_state.versions)
    judging = TableServeability(app_state.iceberg_tables, app_state.signers, app_state.settings)
    served, problem = None, None
    try:
        served = await app_state.pools.run(view.services, judging.judge, view)
    except NotFound as error:
        if not paths:
            raise NotFound("Table", table) from error
        problem = UNPUBLISHED
    except LakeshareError as error:
        problem = error.for_provider()
    days = await run_in_threadpool(_count_by_day, request, paths)
    return request.render("table.html", table=table, paths=paths, served=served, days=days, problem=problem)


def _count_by_day(request: ConsoleRequest, paths: Sequence[str]) -> list[DayUsage] | None:
    counted = request.app_state.usage.read()
    return None if counted is None else counted.by_day(paths=paths)


def _find_paths(request: ConsoleRequest, table: str) -> list[str]:
    with request.app_state.catalog.reading() as session:
        return overviews.list_paths(session, table)


@router.get("/export")
def export(request: PageDep) -> Response:
    """The catalog as a file for `lakeshare apply`, without secrets."""
    with request.app_state.catalog.reading() as session:
        text = declared.export(session, revisions=False)
    headers = {"Content-Disposition": 'attachment; filename="lakeshare.yaml"'}
    return Response(text, headers=headers, media_type="application/yaml")


@router.get("/drift")
async def show_drift(request: SharePageDep) -> Response:
    """A form for a file of `lakeshare apply`; with `contracts`, how the catalog differs from the contracts."""
    if not request.query("contracts"):
        return drift_page(request)
    calls, declared_diff, unread = ConsoleWork.of(request.http_request).calls, None, None
    try:
        declared_diff = await calls.run(CONTRACTS, CONTRACTS_S, lambda pipelines: pipelines.compare_shares())
    except LakeshareError as error:
        unread = error.for_provider()
    return drift_page(request, contracts=declared_diff, unread=unread)


def drift_page(request: ConsoleRequest, **refused: Any) -> Response:
    return request.render("drift.html", **{"lines": None, "contracts": None, "unread": None, **refused})


@router.post("/drift")
@shown_on(drift_page)
def compare_files(request: ChangeDep) -> Response:
    """How the catalog differs from a file of `lakeshare apply`; changes nothing."""
    text = request.value("document")
    if not text:
        raise BadRequest("document", text, "Paste a file of `lakeshare apply`.")
    with TemporaryDirectory(prefix="lakeshare-drift-") as folder:
        path = Path(folder) / "document.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            desired = declared.read_files([path])
        except DocumentError as error:
            raise BadRequest("document", "this one", str(error).replace(f"{path}:", "line ")) from error
    plan = declared.plan_changes(request.app_state.catalog, desired, prune=False)
    lines = list(declared.format_plan(plan))
    return drift_page(request, lines=lines, entered=request.form)
