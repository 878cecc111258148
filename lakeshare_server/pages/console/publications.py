"""Pages of publications: the timeline, the numbers of a table, comparisons, contracts, and what a rollback changes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from lakeshare_server.access.table_access import TableView
from lakeshare_server.catalog import Ledger, overviews
from lakeshare_server.catalog.overviews import PublicationOverview, Readership
from lakeshare_server.errors import LakeshareError, NotFound
from lakeshare_server.pages.console.comparison import (
    ColumnChange,
    FileChanges,
    RowSample,
    compare_columns,
    compare_files,
    sample_changed_rows,
)
from lakeshare_server.pages.console.session import ConsoleRequest, PageDep
from lakeshare_server.protocol.requests import optional_integer
from lakeshare_server.provider.serveability import make_unshared_entry, provider_view

# Runs of Dagster have ids of this form; rollbacks, maintenance and followed tables have others.
DAGSTER_RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MAX_READS = 50

router = APIRouter()


def find_run_url(request: ConsoleRequest, run_id: str) -> str | None:
    """The page of a run in Dagster; None without LAKESHARE_DAGSTER_URL and for what is no run of Dagster."""
    root = request.app_state.settings.dagster_url
    return f"{root.rstrip('/')}/runs/{run_id}" if root and DAGSTER_RUN.fullmatch(run_id) else None


@router.get("/publications")
def list_publications(request: PageDep) -> Response:
    """The publications of all tables, newest first, of one set or table if the query names it."""
    set_name, table = request.query("set"), request.query("table")
    # The first page after signing in: other pages need the count.
    request.app_state.usage.read(wait_s=0)
    with request.app_state.catalog.reading() as session:
        page = overviews.find_publications(session, set_name, table, read_query_number(request, "before"))
    return request.render("publications.html", page=page, set_name=set_name, table=table)


@router.get("/contracts/{digest}")
def show_contract(request: PageDep, digest: str) -> Response:
    """The text of a contract as a set was staged with it."""
    contract = Ledger(request.app_state.catalog).recorded_contract(digest)
    if contract is None:
        raise NotFound("Contract", digest)
    return request.render("contract.html", contract=contract)


@router.get("/publications/{table}")
def show_table_publications(request: PageDep, table: str) -> Response:
    """The numbers of a table, newest first, with charts of their rows and bytes."""
    catalog = request.app_state.catalog
    with catalog.reading() as session:
        page = overviews.find_publications(session, "", table, read_query_number(request, "before"))
        paths = overviews.list_paths(session, table)
    if not page.items and not request.query("before"):
        raise NotFound("Publication", table)
    counted = request.app_state.usage.read()
    return request.render(
        "table_publications.html",
        table=table,
        page=page,
        oldest=Ledger(catalog).oldest_readable(table),
        most_reads=MAX_READS,
        reads=None if counted is None else counted.by_version(paths, MAX_READS),
        rows=[_point(one, one.rows, f"{one.rows:,} rows") for one in reversed(page.items)],
        sizes=[_point(one, one.size_bytes, f"{one.size_bytes:,} bytes") for one in reversed(page.items)],
    )


def _point(publication: PublicationOverview, value: int, text: str) -> tuple[str, int, str]:
    return str(publication.version), value, f"{publication.version}: {text}"


@dataclass(frozen=True)
class Source:
    """A table that a publication was made of; `version` is None if no number is known."""

    table: str
    version: int | None
    text: str


def list_sources(publication: PublicationOverview, of_run: Mapping[str, int]) -> list[Source]:
    """The inputs in the evidence of a publication; `of_run` are the numbers that its run gave, by table."""
    inputs = publication.verdicts.get("inputs") or {}
    sources = []
    for name, read in (inputs.get(publication.table) or {}).items():
        version, is_whole = read.get("version"), read.get("is_whole")
        parts = {True: "all of its rows", False: "the rows of the same partitions", None: "not read"}
        sources.append(Source(name, of_run.get(name) if version is None else version, parts[is_whole]))
    return sources


@router.get("/publications/{table}/compare")
async def compare_publications(request: PageDep, table: str) -> Response:
    """What changed between two numbers of a table, `from` and `to`; sampled rows only if `rows` is given."""
    view = provider_view(make_unshared_entry(table), request.app_state.versions)
    services = await run_in_threadpool(view.versions.services)
    return await request.app_state.pools.run(services, _compare, request, replace(view, services=services))


def _compare(request: ConsoleRequest, view: TableView) -> Response:
    table = view.entry.table
    with request.app_state.catalog.reading() as session:
        newest = overviews.find_publications(session, "", table).items
        if not newest:
            raise NotFound("Publication", table)
        last = read_query_number(request, "to")
        after = newest[0] if last is None else overviews.get_publication(session, table, last)
        first = read_query_number(request, "from")
        earlier = overviews.find_publications(session, "", table, after.version).items
        if first is None:
            before = earlier[0] if earlier else after
        else:
            before = overviews.get_publication(session, table, first)
    comparison = Comparison(before, after)
    try:
        comparison.read(request, view)
    except LakeshareError as error:
        comparison.problem = error.for_provider()
    return request.render(
        "compare.html",
        table=table,
        numbers=[one.version for one in newest],
        comparison=comparison,
        wants_rows=bool(request.query("rows")),
    )


@dataclass
class Comparison:
    """Two numbers of a table and what differs; parts that cannot be read are None, and `problem` is the reason."""

    before: PublicationOverview
    after: PublicationOverview
    columns: list[ColumnChange] | None = None
    files: FileChanges | None = None
    sample: RowSample | None = None
    problem: str | None = None

    def read(self, request: ConsoleRequest, view: TableView) -> None:
        """Compares the indexes; raises LakeshareError if a version is not readable any more."""
        versions = view.at_version(self.before.version), view.at_version(self.after.version)
        old, new = (view.index(version) for version in versions)
        self.columns = compare_columns(old.header.head.schema_string, new.header.head.schema_string)
        self.files = compare_files(old, new)
        # Rows are for those who can read them as a recipient, too.
        if request.query("rows") and request.may("SHARE"):
            self.sample = sample_changed_rows(
                request, view, self.before.version, self.after.version, self.files
            )


@router.get("/publications/{table}/{version}")
def show_publication(request: PageDep, table: str, version: str) -> Response:
    """A number of a table: what was checked, what it was made of, and the run."""
    ledger = Ledger(request.app_state.catalog)
    with request.app_state.catalog.reading() as session:
        publication = overviews.get_publication(session, table, parse_version(table, version))
        earlier = overviews.find_publications(session, "", table, publication.version).items
    of_run = {row.table: row.version for row in ledger.by_run(publication.run_id)}
    return request.render(
        "publication.html",
        publication=publication,
        earlier=earlier[0] if earlier else None,
        is_readable=publication.version >= ledger.oldest_readable(table),
        sources=list_sources(publication, of_run),
        of_run={name: number for name, number in of_run.items() if name != table},
        run_url=find_run_url(request, publication.run_id),
    )


@router.get("/publications/{table}/{version}/rollback")
def preview_rollback(request: PageDep, table: str, version: str) -> Response:
    """Who is affected when a number is published again, with the form for it."""
    ledger = Ledger(request.app_state.catalog)
    with request.app_state.catalog.reading() as session:
        publication = overviews.get_publication(session, table, parse_version(table, version))
        newest = overviews.find_publications(session, "", table).items[0]
        readership = overviews.find_readership(session, table, request.query("after"))
    return request.render(
        "rollback.html",
        publication=publication,
        newest=newest,
        hindrance=find_hindrance(publication, newest, ledger.oldest_readable(table)),
        effects=describe_effects(readership, publication),
        readership=readership,
    )


def find_hindrance(
    publication: PublicationOverview, newest: PublicationOverview, oldest_readable: int
) -> str | None:
    """Why a number cannot be published again, or would change nothing; None if it can."""
    if not publication.audited:
        return "This table is followed: restore it where it is written, and its next state gets a number."
    if publication.version < oldest_readable:
        return f"It has expired: its files may be gone. Numbers from {oldest_readable} on can be published again."
    repeated = newest.rollback_of if newest.maintenance_of is None else newest.maintenance_of
    if publication.version in (newest.version, repeated):
        return f"The newest number, {newest.version}, has these rows already."
    return None


@dataclass(frozen=True)
class Effect:
    """What a rollback changes for the recipients of a share; `text` is the reason if it changes nothing."""

    path: str
    share: str
    recipients: int
    is_affected: bool
    text: str


def describe_effects(readership: Readership, publication: PublicationOverview) -> list[Effect]:
    effects = []
    for entry in readership.entries:
        is_affected, text = True, "reads the new number from now on"
        if entry.publication is not None:
            is_affected, text = False, f"pinned to {entry.publication}: nothing changes"
        elif entry.start_version is not None and publication.version < entry.start_version:
            text = f"reads rows from before {entry.start_version}, the first version that is shared"
        recipients = readership.readers.get(entry.share, 0)
        effects.append(Effect(entry.path, entry.share, recipients, is_affected, text))
    return effects


def parse_version(table: str, text: str) -> int:
    """The number in a path; raises NotFound for other texts."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise NotFound("Publication", f"{text} of {table}")
    return int(text)


def read_query_number(request: ConsoleRequest, name: str) -> int | None:
    """A field of the query that is a whole number from 0; None if it is missing or empty. Raises BadRequest."""
    text = request.query(name)
    return optional_integer({name: text} if text else {}, name)
