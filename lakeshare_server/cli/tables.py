"""Commands about tables: follow one in storage, end that, show what recipients get of one."""

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.snippets import Api, EngineName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakeshare_server.access.table_access import TableView
    from lakeshare_server.catalog import Catalog, TableEntry
    from lakeshare_server.provider.following import FollowOutcome
    from lakeshare_server.provider.serveability import ServedTable
    from lakeshare_server.settings import ServerSettings
    from lakeshare_server.snippets import TableAccess
    from lakeshare_server.tables.index import IndexHeader
    from lakeshare_server.tables.serveability import Verdict
    from lakeshare_server.versions import TableVersions, Versions

table_app = typer.Typer(
    help="Tables: follow one that no pipeline of ours writes, and look at what recipients get.",
    no_args_is_help=True,
)


@table_app.command("follow")
def follow(
    locations: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LOCATION...",
            help="Where a Delta or Iceberg table is: a folder, a URL like s3://bucket/path (gs://, abfss://), an "
            "Iceberg metadata file, iceberg:CATALOG/NAMESPACE.TABLE or nessie:CATALOG/NAMESPACE.TABLE@BRANCH. With * "
            "for the table, all tables of a folder or a namespace.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            help="What recipients call a single table: schema.table; by default as its location has it.",
        ),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="The schema of all tables; by default that of each location.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with one location per line, optionally with a tab and schema.table behind it."
        ),
    ] = None,
    share: Annotated[str, typer.Option(help="The share they go into; made when it is not there.")] = "lake",
    check_every: Annotated[
        float, typer.Option(min=0, help="Look for new versions at most this often, in seconds.")
    ] = 10.0,
    start_version: Annotated[
        int, typer.Option(min=0, help="The first version recipients may read, when history is shared.")
    ] = 0,
    history: Annotated[bool, typer.Option(help="Recipients may read earlier versions and changes.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON, for programs.")] = False,
) -> None:
    """Share Delta or Iceberg tables as they are; every version found there becomes an unaudited publication.

    LOCATION is a folder or a URL like s3://bucket/path (gs://, abfss://), of a Delta table if it has a Delta log, else
    of an Iceberg table; or one Iceberg metadata file; or iceberg:CATALOG/NAMESPACE.TABLE, a table of a catalog; or
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
    from lakeshare_server.errors import BadRequest
    from lakeshare_server.provider.following import Following, FollowRequest

    settings, catalog = _state()
    open_before = _open_folders(catalog)
    requested: list[tuple[str, str | None]] = [(location, name) for location in locations or ()]
    requested += [] if from_file is None else list(_lines_of(from_file))
    if not requested:
        raise BadRequest("LOCATION", "nothing", "Give one location or more, or a file with --from-file.")
    is_single = len(requested) == 1 and from_file is None and not is_location_pattern(requested[0][0])
    if name is not None and not is_single:
        hint = "It names a single table. Give --schema for many, or --from-file with a name on each line."
        raise BadRequest("--as", name, hint)
    following = Following.of(catalog, settings)
    usual = FollowRequest(
        share=share, check_every_s=check_every, start_version=start_version, history=history
    )
    requests = following.requests(requested, usual, schema)
    if is_single and not as_json:
        typer.echo(f"reading {requests[0].location} …", err=True)
        _show_followed(following.follow(requests[0]))
    else:
        typer.echo(f"reading {len(requests)} tables …", err=True)
        _report(following.follow_all(requests), as_json=as_json)
    _print_closed_folders(catalog, open_before)
    if is_single and not as_json:
        typer.echo(f"grant it: lakeshare recipient add NAME --share {share}")


def _lines_of(path: Path) -> "Iterator[tuple[str, str | None]]":
    """The locations in a file; empty lines and those that begin with # are left out."""
    from lakeshare_server.errors import BadRequest

    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest("--from-file", str(path), f"It cannot be read: {error}.") from error
    for line in lines:
        location, _, name = line.partition("\t")
        if location.strip() and not location.startswith("#"):
            yield location.strip(), name.strip() or None


def _show_followed(outcome: "FollowOutcome") -> None:
    """The table that was followed, which clients can read it, and why the others cannot."""
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


def _report(outcomes: "Iterator[FollowOutcome]", *, as_json: bool) -> None:
    """A line for each table, and how many there are of each kind; ends with 1 when one was refused."""
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
    """Stop following a table; recipients find nothing there any more. The table itself is not touched."""
    from lakeshare_server.catalog import FollowedTables

    _, catalog = _state()
    open_before = _open_folders(catalog)
    typer.echo(f"{FollowedTables(catalog).remove(name).table} is followed no more")
    _print_closed_folders(catalog, open_before)


@table_app.command("list")
def list_tables() -> None:
    """List followed tables with their places, how often they are looked at, and their format."""
    from lakeshare_server.catalog import FollowedTables

    _, catalog = _state()
    for one in FollowedTables(catalog).list():
        since = f"from version {one.start_version}" if one.start_version else "whole history"
        format_ = "delta" if one.iceberg is None else "iceberg"
        typer.echo(f"{one.table}\t{one.location}\tevery {one.check_every_s:g} s\t{since}\t{format_}")


@table_app.command("show")
def show(path: Annotated[str, typer.Argument(help="What recipients call it: share.schema.table.")]) -> None:
    """Show what recipients get of a shared table: version, files, formats, and how else it can be read."""
    from lakeshare_server.catalog.listings import find_shared_table
    from lakeshare_server.provider.serveability import TableServeability, provider_view

    settings, catalog = _state()
    entry = find_shared_table(catalog, path, "PATH")
    view = provider_view(entry, _all_versions(settings, catalog))
    served = TableServeability.of(catalog, settings).judge(view)
    for name, value in [
        *_format_state(catalog, entry, view, served),
        ("history", "shared" if entry.history else "not shared"),
        ("parquet format", _all_reasons(served.verdicts["python-parquet"])),
        ("delta format", _delta_format(served)),
        ("Iceberg REST API", _all_reasons(served.iceberg)),
        ("directory access", f"no, {served.no_credentials}" if served.no_credentials else "yes"),
    ]:
        typer.echo(f"{name}\t{value}")


@table_app.command("serveability")
def tell_serveability(
    name: Annotated[str, typer.Argument(help="The table: schema.table of the lake, or share.schema.table.")],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Tell which clients can read a table's newest version, as what, and if not, why and what to do.

    Example: lakeshare table serveability sales.orders
    """
    settings, catalog = _state()
    verdicts = _verdicts(settings, catalog, name)
    if as_json:
        typer.echo(json.dumps([verdict.as_json() for verdict in verdicts], ensure_ascii=False, indent=2))
        return
    for one in verdicts:
        typer.echo(f"{one.client}\t{one}")


@table_app.command("directory-access")
def directory_access(
    path: Annotated[str, typer.Argument(help="What recipients call it: share.schema.table.")],
    allow: Annotated[
        bool,
        typer.Option("--allow/--forbid", help="Whether recipients may get credentials for the whole folder."),
    ],
) -> None:
    """Let recipients read a table's folder with temporary credentials, whatever else lies in it; or end that."""
    from lakeshare_server.catalog.shares import allow_directory_access
    from lakeshare_server.errors import BadRequest

    names = path.split(".")
    if len(names) != 3:
        raise BadRequest("PATH", path, "Give share.schema.table.")
    settings, catalog = _state()
    share, schema, table = names
    entry = allow_directory_access(catalog, share, schema, table, allowed=allow)
    versions = _versions(settings, catalog, entry.lake_table)
    refusal = _directory_refusal(settings, entry, versions.index(versions.latest()).header)
    typer.echo(f"{entry.path}: directory access {'no, ' + refusal if refusal else 'yes'}")


def _verdicts(settings: "ServerSettings", catalog: "Catalog", name: str) -> "list[Verdict]":
    """The verdicts on a shared table; of a lake table that is shared several times, those of the first place."""
    from lakeshare_server.catalog.listings import list_all_shared_tables
    from lakeshare_server.errors import BadRequest, NotFound
    from lakeshare_server.provider.serveability import TableServeability, make_unshared_entry, provider_view
    from lakeshare_server.tables.serveability import directory_verdict

    shared = list_all_shared_tables(catalog)
    named = [entry for entry in shared if entry.path.lower() == name.lower()]
    lake_table = named[0].lake_table if named else name
    places = [entry for entry in shared if entry.lake_table == lake_table]
    versions, judging = _all_versions(settings, catalog), TableServeability.of(catalog, settings)
    entry = next(iter([*named, *places]), make_unshared_entry(lake_table))
    try:
        served = judging.judge(provider_view(entry, versions))
    except NotFound as error:
        known = ", ".join(sorted({one.lake_table for one in shared})) or "none"
        raise BadRequest(
            "NAME", name, f"No version of it is published or followed. Shared are: {known}."
        ) from error
    others = {
        place: served if place == entry else judging.judge(provider_view(place, versions)) for place in places
    }
    folders = [directory_verdict(one.path, found.no_credentials) for one, found in others.items()]
    return [*served.verdicts.values(), *folders]


def _format_state(
    catalog: "Catalog", entry: "TableEntry", view: "TableView", served: "ServedTable"
) -> "Iterator[tuple[str, str]]":
    """What there is of the newest version: by its index, or by its writer's counts where it has none."""
    from lakeshare_server.catalog import Ledger

    header = served.header
    row = None if header else Ledger(catalog).at(entry.lake_table, served.version.number)
    counted = header or row
    table_format = header.table_format if header else row.format if row else "unknown format"
    yield "table", f"{entry.path} ({table_format}, lake table {entry.lake_table})"
    yield "location", header.location if header else view.versions.location()
    yield "version", str(served.version.number)
    if counted is not None:
        yield "files", f"{counted.files} files, {counted.rows} rows, {counted.size_bytes} bytes"


def _delta_format(served: "ServedTable") -> str:
    """Whether the delta format can carry a table, with the reader features that a client has to announce."""
    from lakeshare_server.tables.serveability import needed_features

    refused = [verdict for verdict in served.verdicts.values() if verdict.id in ("python-delta", "spark")]
    needed = [] if served.header is None else needed_features(served.header.head)
    unannounced = {one.code for verdict in refused for one in verdict.refused_for}
    if served.header is None or not unannounced <= {
        hindrance.code for hindrance in served.header.head.hindrances
    }:
        return _all_reasons(refused[0])
    if not needed:
        return "yes"
    nobody = all(verdict.served_as is None for verdict in refused)
    return f"yes, needs {', '.join(needed)}" + (", which no known client announces" if nobody else "")


def _all_reasons(verdict: "Verdict") -> str:
    """Whether a client gets a table, with all reasons why not."""
    if verdict.served_as is not None:
        return "yes"
    return "no, " + "; ".join(one.reason.rstrip(".") for one in verdict.refused_for)


def _open_folders(catalog: "Catalog") -> dict[str, str]:
    """The shared tables with directory access, path by id."""
    from lakeshare_server.catalog.listings import list_all_shared_tables

    return {entry.id: entry.path for entry in list_all_shared_tables(catalog) if entry.directory_access}


def _print_closed_folders(catalog: "Catalog", open_before: dict[str, str]) -> None:
    still_open = _open_folders(catalog)
    for path in sorted(path for id_, path in open_before.items() if id_ not in still_open):
        again = f"lakeshare table directory-access {path} --allow"
        typer.echo(f"{path}: directory access has ended with the table it was allowed for; again: {again}")


def _directory_refusal(settings: "ServerSettings", entry: "TableEntry", header: "IndexHeader") -> str | None:
    from lakeshare_server.access.table_access import directory_refusal
    from lakeshare_server.errors import Unavailable
    from lakeshare_server.storage import LocalSigner, Signers, Stores

    # Only stores are asked; nothing is signed with this key.
    signers = Signers(settings, LocalSigner(b"", settings.base_url()), Stores(settings))
    try:
        return directory_refusal(entry, header, signers)
    except Unavailable as error:
        return str(error)


def _versions(settings: "ServerSettings", catalog: "Catalog", table: str) -> "TableVersions":
    return _all_versions(settings, catalog).of(table)


def _all_versions(settings: "ServerSettings", catalog: "Catalog") -> "Versions":
    from lakeshare_server.storage import Stores
    from lakeshare_server.versions import Versions

    return Versions(catalog, settings, Stores(settings))


def _state() -> "tuple[ServerSettings, Catalog]":
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.settings import ServerSettings

    settings = ServerSettings()
    return settings, open_catalog(settings.catalog_url)


def snippet(
    path: Annotated[
        str, typer.Argument(metavar="SHARE.SCHEMA.TABLE", help="The table as recipients call it.")
    ],
    engine: Annotated[EngineName, typer.Option(help="What reads the table.")],
    profile: Annotated[
        Path, typer.Option(help="The recipient's profile file, as the snippet is to find it.")
    ] = Path("recipient.share"),
    door: Annotated[
        Api | None,
        typer.Option(
            help="The Iceberg REST catalog or Delta Sharing; what works from most places by default."
        ),
    ] = None,
) -> None:
    """Print how a recipient reads a shared table with an engine, ready to run; the token stays in the profile.

    Example: lakeshare snippet partners.sales.orders --engine polars --profile bob.share > orders.py
    """
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.catalog.listings import find_shared_table
    from lakeshare_server.settings import ServerSettings
    from lakeshare_server.snippets import ENGINES, make_snippet_table
    from lakeshare_server.snippets import render_snippet as text_of

    settings = ServerSettings()
    catalog = open_catalog(settings.catalog_url)
    entry = find_shared_table(catalog, path, "SHARE.SCHEMA.TABLE")
    access = _read_access(settings, catalog, entry)
    table = make_snippet_table(
        entry,
        access,
        profile=str(profile),
        iceberg_url=_fill_snippet(profile, "icebergEndpoint", settings.iceberg_url()),
        sharing_url=_fill_snippet(profile, "endpoint", settings.base_url()),
    )
    typer.echo(text_of(ENGINES[engine], table, access, door), nl=False)


def _read_access(settings: "ServerSettings", catalog: "Catalog", entry: "TableEntry") -> "TableAccess":
    from lakeshare_server.provider.serveability import TableServeability, provider_view
    from lakeshare_server.snippets import make_table_access
    from lakeshare_server.storage import Stores
    from lakeshare_server.versions import Versions

    view = provider_view(entry, Versions(catalog, settings, Stores(settings)))
    return make_table_access(TableServeability.of(catalog, settings).judge(view))


def _fill_snippet(profile: Path, name: str, own: str) -> str:
    """Where the profile says a door is, or this server's own when there is no such file here."""
    try:
        token = json.loads(profile.read_text()).get(name)
    except (OSError, ValueError, AttributeError):
        token = None
    return token if isinstance(token, str) else own
