"""Commands for tables: follow tables in storage, show how tables are served, print snippets."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.cli.console import (
    AsJson,
    open_provider,
    open_state_catalog,
    parse_shared_path,
    print_json,
    print_table,
)
from lakeshare_server.errors import BadRequest, NotFound, Unavailable
from lakeshare_server.lazy import LazyModule
from lakeshare_server.snippets import ENGINES, Api, EngineName, make_snippet_table, render_snippet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakeshare_server import catalog as server_catalog
    from lakeshare_server.access.table_access import TableView
    from lakeshare_server.catalog import Catalog, SharedTable, listings
    from lakeshare_server.provider import serveability
    from lakeshare_server.provider.following import FollowOutcome, Provider
    from lakeshare_server.provider.serveability import ServedTable
    from lakeshare_server.tables import serveability as table_serveability
    from lakeshare_server.tables.serveability import Verdict
else:
    server_catalog = LazyModule("lakeshare_server.catalog")
    listings = LazyModule("lakeshare_server.catalog.listings")
    serveability = LazyModule("lakeshare_server.provider.serveability")
    table_serveability = LazyModule("lakeshare_server.tables.serveability")

SharedPath = Annotated[str, typer.Argument(help="The recipients' name: share.schema.table.")]

table_app = typer.Typer(
    help="Tables: follow tables that no pipeline of ours writes, and show what recipients get.",
    no_args_is_help=True,
)


@table_app.command("follow")
def follow(
    locations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOCATION...",
            help="Location of a Delta or Iceberg table: a folder, a URL like s3://bucket/path, an Iceberg metadata "
            "file, iceberg:CATALOG/NAMESPACE.TABLE or nessie:CATALOG/NAMESPACE.TABLE@BRANCH. With * for the table, all "
            "tables of a folder or a namespace.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--as", help="Name of a single table: schema.table; by default its location's."),
    ] = None,
    schema: Annotated[str | None, typer.Option(help="Schema of all; by default each location's.")] = None,
    from_file: Annotated[
        Path | None, typer.Option(help="A file with a location per line, optionally a tab and schema.table.")
    ] = None,
    share: Annotated[str, typer.Option(help="The share to add them to; created if it is missing.")] = "lake",
    check_every: Annotated[float, typer.Option(min=0, help="Seconds between checks of versions.")] = 10.0,
    start_version: Annotated[
        int, typer.Option(min=0, help="The first version recipients may read, when history is shared.")
    ] = 0,
    history: Annotated[bool, typer.Option(help="Recipients may read earlier versions and changes.")] = True,
    as_json: AsJson = False,
) -> None:
    """Share Delta or Iceberg tables as they are; each new version in storage becomes an unaudited publication.

    LOCATION is a folder or a URL like s3://bucket/path, of a Delta table if it has a Delta log, else of an Iceberg
    table; or one Iceberg metadata file; or iceberg:CATALOG/NAMESPACE.TABLE, a table of a catalog; or
    nessie:CATALOG/NAMESPACE.TABLE@BRANCH, of a Nessie, on branch main by default. With a star for the table it is all
    tables of a folder or a namespace: 's3://lake/sales/*', 'iceberg:prod/sales.*', 'nessie:git/sales.*@main'.

    CATALOG is a name of pyiceberg's configuration, .pyiceberg.yaml or PYICEBERG_CATALOG__NAME__URI, __TYPE, __TOKEN …
    in the environment, which the server needs, too. Nessie's URI is that of its API, like http://host:19120/api/v2.

    Several tables are followed at the same time, and a table that is refused does not stop the others: the report has a
    line for each, and the exit code is 1 when one was refused.

    Example: lakeshare table follow s3://lake/sales/orders --as sales.orders --share partners

    Example: lakeshare table follow 'iceberg:prod/sales.*' --share partners
    """
    from lakeshare_server.catalog.ledger import is_location_pattern
    from lakeshare_server.provider.following import FollowRequest

    requested: list[tuple[str, str | None]] = [(location, name) for location in locations or ()]
    requested += [] if from_file is None else list(_read_locations(from_file))
    if not requested:
        raise BadRequest("LOCATION", "nothing", "Give one location or more, or a file with --from-file.")
    is_single = len(requested) == 1 and from_file is None and not is_location_pattern(requested[0][0])
    if name is not None and not is_single:
        hint = "It names a single table. Give --schema for many, or --from-file with a name on each line."
        raise BadRequest("--as", name, hint)
    following = open_provider().following
    defaults = FollowRequest(
        share=share, check_every_s=check_every, start_version=start_version, history=history
    )
    requests = following.requests(requested, defaults, schema)
    if is_single and not as_json:
        typer.echo(f"reading {requests[0].location} …", err=True)
        _print_followed(following.follow(requests[0]))
    else:
        typer.echo(f"reading {len(requests)} tables …", err=True)
        _print_report(following.follow_all(requests), as_json=as_json)
    if is_single and not as_json:
        typer.echo(f"grant it: lakeshare recipient add NAME --share {share}")


def _read_locations(path: Path) -> "Iterator[tuple[str, str | None]]":
    """The locations in a file, without empty lines and lines that begin with #."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest("--from-file", str(path), f"It cannot be read: {error}.") from error
    for line in lines:
        location, _, name = line.partition("\t")
        if location.strip() and not location.startswith("#"):
            yield location.strip(), name.strip() or None


def _print_followed(outcome: "FollowOutcome") -> None:
    entry, served = outcome.entry, outcome.served
    if entry is None or served is None:
        raise AssertionError("unreachable: a refusal is raised")
    typer.echo(f"{entry.path} follows {outcome.location}, now at version {served.version.number} (unaudited)")
    if served.clients:
        typer.echo(f"served to {', '.join(served.clients)}")
    else:
        typer.echo(f"warning: {entry.path} is followed, but no known client can read it", err=True)
    for id_, verdict in served.verdicts.items():
        if verdict.served_as is None:
            typer.echo(f"{id_}: {verdict}", err=not served.clients)


def _print_report(outcomes: "Iterator[FollowOutcome]", *, as_json: bool) -> None:
    """Prints a line per table and the number per result; exits with 1 when a table was refused."""
    results, counts = [], Counter[str]()
    for outcome in outcomes:
        counts[outcome.result] += 1
        results.append(outcome.as_json())
        if not as_json:
            typer.echo("\t".join(results[-1][column] for column in ("result", "table", "location", "remark")))
    if as_json:
        typer.echo(json.dumps(results, ensure_ascii=False, indent=2))
    typer.echo(", ".join(f"{count} {result}" for result, count in sorted(counts.items())), err=True)
    if counts["refused"]:
        raise typer.Exit(1)


@table_app.command("unfollow")
def unfollow(name: Annotated[str, typer.Argument(help="The table's name: schema.table.")]) -> None:
    """Stop following a table; recipients can no longer read it. The table itself is not changed."""
    catalog = open_state_catalog()
    shared = listings.list_all_shared_tables(catalog)
    table = server_catalog.FollowedTables(catalog).remove(name).table
    typer.echo(f"{table} is followed no more")
    for path in sorted(entry.path for entry in shared if entry.directory_access and entry.table == table):
        again = f"lakeshare table directory-access {path} --allow"
        typer.echo(f"{path}: directory access has ended with the table it was allowed for; again: {again}")


@table_app.command("list")
def list_tables(as_json: AsJson = False) -> None:
    """List followed tables with location, check interval, first version and format."""
    tables = server_catalog.FollowedTables(open_state_catalog()).list()
    if as_json:
        print_json([{**followed.as_json(), "created_at": followed.created_at} for followed in tables])
        return
    rows = []
    for followed in tables:
        since = f"from version {followed.start_version}" if followed.start_version else "whole history"
        every = f"every {followed.check_every_s:g} s"
        rows.append([followed.table, followed.location, every, since, followed.format])
    print_table(rows)


@table_app.command("show")
def show(path: SharedPath) -> None:
    """Show how a shared table is served: version, files, formats, and other ways to read it."""
    provider = open_provider()
    entry = listings.find_shared_table(provider.catalog, path, "PATH")
    view = serveability.provider_view(entry, provider.versions)
    served = provider.serveability.judge(view)
    parts = [
        *_describe_version(provider.catalog, entry, view, served),
        ("history", "shared" if entry.history else "not shared"),
        ("parquet format", _describe_verdict(served.verdicts["python-parquet"])),
        ("delta format", _describe_delta_format(served)),
        ("Iceberg REST API", _describe_verdict(served.iceberg)),
        ("directory access", f"no, {served.no_credentials}" if served.no_credentials else "yes"),
    ]
    print_table(parts)


@table_app.command("serveability")
def print_serveability(
    name: Annotated[str, typer.Argument(help="The table: schema.table of the lake, or share.schema.table.")],
    as_json: AsJson = False,
) -> None:
    """List the clients that can read a table's newest version, in which format, or why not and what to do.

    Example: lakeshare table serveability sales.orders
    """
    verdicts = _judge_clients(open_provider(), name)
    if as_json:
        print_json([verdict.as_json() for verdict in verdicts])
        return
    print_table((verdict.client, verdict) for verdict in verdicts)


@table_app.command("directory-access")
def directory_access(
    path: SharedPath,
    allow: Annotated[
        bool,
        typer.Option("--allow/--forbid", help="Whether recipients may get credentials for the whole folder."),
    ],
) -> None:
    """Let recipients read a table's whole folder with temporary credentials, other files included; or end that."""
    from lakeshare_server.access.table_access import directory_refusal
    from lakeshare_server.catalog import allow_directory_access

    names, provider = parse_shared_path("PATH", path), open_provider()
    entry = allow_directory_access(provider.catalog, *names, allowed=allow)
    versions = provider.versions.of(entry.table)
    header = versions.index(versions.latest()).header
    try:
        refusal = directory_refusal(entry, header, provider.signers)
    except Unavailable as error:
        refusal = str(error)
    typer.echo(f"{entry.path}: directory access {'no, ' + refusal if refusal else 'yes'}")


def _judge_clients(provider: "Provider", name: str) -> "list[Verdict]":
    """The verdicts on a table, of its first share if it is shared several times, and on each share's folder access."""
    shared = listings.list_all_shared_tables(provider.catalog)
    named = [entry for entry in shared if entry.path.lower() == name.lower()]
    lake_table = named[0].table if named else name
    entries = [entry for entry in shared if entry.table == lake_table]
    versions, judging = provider.versions, provider.serveability
    first = next(iter([*named, *entries]), serveability.make_unshared_entry(lake_table))
    try:
        served = judging.judge(serveability.provider_view(first, versions))
    except NotFound as error:
        known = ", ".join(sorted({entry.table for entry in shared})) or "none"
        hint = f"No version of it is published or followed. Shared are: {known}."
        raise BadRequest("NAME", name, hint) from error
    folders = []
    for entry in entries:
        judged = served if entry == first else judging.judge(serveability.provider_view(entry, versions))
        folders.append(table_serveability.directory_verdict(entry.path, judged.no_credentials))
    return [*served.verdicts.values(), *folders]


def _describe_version(
    catalog: "Catalog", entry: "SharedTable", view: "TableView", served: "ServedTable"
) -> "Iterator[tuple[str, str]]":
    """The newest version, by its file index, else by the counts of its writer."""
    header = served.header
    row = None if header else server_catalog.Ledger(catalog).at(entry.table, served.version.number)
    counted = header or row
    table_format = header.table_format if header else row.format if row else "unknown format"
    yield "table", f"{entry.path} ({table_format}, lake table {entry.table})"
    yield "location", header.location if header else view.versions.location()
    yield "version", str(served.version.number)
    if counted is not None:
        yield "files", f"{counted.files} files, {counted.rows} rows, {counted.size_bytes} bytes"


def _describe_delta_format(served: "ServedTable") -> str:
    """Whether the delta format can carry a table, with the reader features that a client must announce."""
    refused = [verdict for verdict in served.verdicts.values() if verdict.id in ("python-delta", "spark")]
    needed = [] if served.header is None else table_serveability.needed_features(served.header.head)
    codes = {refusal.code for verdict in refused for refusal in verdict.refused_for}
    hindrances = set() if served.header is None else {h.code for h in served.header.head.hindrances}
    if served.header is None or not codes <= hindrances:
        return _describe_verdict(refused[0])
    if not needed:
        return "yes"
    is_unread = all(verdict.served_as is None for verdict in refused)
    return f"yes, needs {', '.join(needed)}" + (", which no known client announces" if is_unread else "")


def _describe_verdict(verdict: "Verdict") -> str:
    if verdict.served_as is not None:
        return "yes"
    return "no, " + "; ".join(refusal.reason.rstrip(".") for refusal in verdict.refused_for)


def snippet(
    path: Annotated[str, typer.Argument(metavar="SHARE.SCHEMA.TABLE", help="The recipients' name of it.")],
    engine: Annotated[EngineName, typer.Option(help="The engine that reads the table.")],
    profile: Annotated[
        Path, typer.Option(help="Path of the recipient's profile file in the snippet.")
    ] = Path("recipient.share"),
    api: Annotated[
        Api | None, typer.Option("--api", help="API to use; by default the one that works on most machines.")
    ] = None,
) -> None:
    """Print how a recipient reads a shared table with an engine, ready to run; the token stays in the profile.

    Example: lakeshare snippet partners.sales.orders --engine polars --profile bob.share > orders.py
    """
    provider = open_provider()
    entry = listings.find_shared_table(provider.catalog, path, "SHARE.SCHEMA.TABLE")
    served = provider.serveability.judge(serveability.provider_view(entry, provider.versions))
    table = make_snippet_table(
        entry,
        served,
        profile=str(profile),
        iceberg_url=_read_url(profile, "icebergEndpoint", provider.settings.iceberg_url()),
        sharing_url=_read_url(profile, "endpoint", provider.settings.base_url()),
    )
    typer.echo(render_snippet(ENGINES[engine], table, served, api), nl=False)


def _read_url(profile: Path, name: str, default: str) -> str:
    """The endpoint in the profile; the server's own if the file cannot be read."""
    try:
        url = json.loads(profile.read_text()).get(name)
    except (OSError, ValueError, AttributeError):
        url = None
    return url if isinstance(url, str) else default
