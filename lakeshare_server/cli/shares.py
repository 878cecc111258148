"""Commands for shares, for declared files (`apply`, `diff`, `export`) and for SQL."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeshare_server.cli.console import (
    AsJson,
    Texts,
    confirm,
    drop_named,
    edit_catalog,
    edit_share,
    given,
    given_texts,
    open_provider,
    open_state_catalog,
    operator_name,
    parse_moment,
    parse_properties,
    parse_shared_path,
    parse_table_path,
    print_json,
    print_table,
    text_options,
)
from lakeshare_server.errors import BadRequest
from lakeshare_server.lazy import LazyModule
from lakeshare_server.settings import ServerSettings

if TYPE_CHECKING:
    from lakeshare_server.access.rules import LakeVersions
    from lakeshare_server.catalog import Catalog, declared, sharing, states
    from lakeshare_server.catalog.declared import Plan
    from lakeshare_server.catalog.declared.files import DesiredObject, Key
    from lakeshare_server.catalog.sharing import Edit
    from lakeshare_server.provider import following
    from lakeshare_server.sql.session import SqlSession, StatementResult
    from lakeshare_server.versions import Versions
else:
    declared = LazyModule("lakeshare_server.catalog.declared")
    following = LazyModule("lakeshare_server.provider.following")
    sharing = LazyModule("lakeshare_server.catalog.sharing")
    states = LazyModule("lakeshare_server.catalog.states")

share_app = typer.Typer(help="Shares: what can be granted, and to whom it is.", no_args_is_help=True)

ShareName = Annotated[str, typer.Argument(metavar="SHARE", help="The share's name.")]
TablePath = Annotated[str, typer.Argument(metavar="SHARE.SCHEMA.TABLE", help="The recipients' name of it.")]
Comment = Annotated[str | None, typer.Option(help="A description.")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", help="key=value; replaces all properties; repeat for more.")
]
StartVersion = Annotated[int | None, typer.Option(min=0, help="The first version that recipients may read.")]
Rule = Annotated[
    str | None,
    typer.Option(
        "--where", help="A predicate on partition columns, like \"region = 'EU'\"; '' for all rows."
    ),
]
Recipient = Annotated[str | None, typer.Option("--recipient", help="The recipient that may read it.")]
Group = Annotated[str | None, typer.Option("--group", help="The group whose members may read it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Files = Annotated[list[Path], typer.Option("--file", "-f", help="YAML file, or folder of them; repeatable.")]
ConfigurationName = Annotated[
    str | None,
    typer.Option(
        "--configuration", help="The name of these files, for several teams: the objects of others stay."
    ),
]

SHOWN_FIELDS = (
    *("comment", "start_version", "rule", "publication", "directory_access", "retire_date", "successor"),
    *("declared", "applied", "configuration"),
)
DIFFERS_EXIT_CODE = 2
COLORS = {"+": typer.colors.GREEN, "~": typer.colors.YELLOW, "-": typer.colors.RED, "?": typer.colors.CYAN}
REFUSED, NOT_SQL = 1, 2
STDIN = Path("-")


@share_app.command("list")
def list_shares(as_json: AsJson = False) -> None:
    """List shared tables with their names in the share and in the lake, and the publication that recipients read."""
    from lakeshare_server.catalog import Ledger
    from lakeshare_server.catalog.listings import list_all_shared_tables

    catalog = open_state_catalog()
    ledger = Ledger(catalog)
    newest = [(entry, ledger.latest(entry.table)) for entry in list_all_shared_tables(catalog)]
    if as_json:
        print_json(
            [
                {"path": entry.path, "table": entry.table, "latest": latest and latest.version}
                for entry, latest in newest
            ]
        )
        return
    print_table(
        (entry.path, entry.table, "not published yet" if latest is None else f"publication {latest.version}")
        for entry, latest in newest
    )


@share_app.command("show")
def show_share(name: ShareName, as_json: AsJson = False) -> None:
    """Show a share: its fields, its tables, and its grants with their start and end."""
    with open_state_catalog().reading() as session:
        share, objects = states.get_share(session, name), states.list_objects(session, name)
        grants = states.list_grants(session, share=name)
    if as_json:
        parts = {"tables": [one.as_json() for one in objects], "grants": [one.as_json() for one in grants]}
        print_json({**share.as_json(), **parts})
        return
    rows: list[Sequence[object]] = list(share.as_json().items())
    for shared in objects:
        fields = {**shared.as_json(), "history": shared.history}
        remarks = [f"{field}={fields[field]}" for field in SHOWN_FIELDS if fields.get(field)]
        remarks += [] if shared.history else ["no history"]
        rows.append([shared.kind.lower(), shared.path, shared.table, ", ".join(remarks)])
    for grant in grants:
        reader = f"recipient {grant.recipient}" if grant.recipient is not None else f"group {grant.group}"
        end = "further notice" if grant.ends_at is None else f"{grant.ends_at:%Y-%m-%d %H:%MZ}"
        start = "" if grant.starts_at is None else f"from {grant.starts_at:%Y-%m-%d %H:%MZ} "
        rows.append(["grant", reader, f"{start}until {end}", grant.rule])
    print_table(rows)


@share_app.command("create")
@text_options("share")
def create(
    name: ShareName,
    texts: Texts,
    comment: Comment = None,
    owner: Annotated[str | None, typer.Option(help="The person responsible; by default its creator.")] = None,
    property_: Properties = None,
) -> None:
    """Create an empty share.

    Example: lakeshare share create partners --comment "Orders of the last year"
    """
    properties = parse_properties("--property", property_ or [])
    with edit_catalog() as edit:
        share = sharing.create_share(edit, name, comment=comment, owner=owner, properties=properties, **texts)
    typer.echo(f"{share.name} is there: lakeshare share add {share.name} LAKE.TABLE")


@share_app.command("set")
@text_options("share")
def set_(
    name: ShareName,
    texts: Texts,
    comment: Comment = None,
    owner: Annotated[str | None, typer.Option(help="The person responsible.")] = None,
    rename: Annotated[str | None, typer.Option(help="New name; the old one ends for recipients.")] = None,
    property_: Properties = None,
) -> None:
    """Change the given fields of a share; an empty text removes a comment or display name."""
    with edit_catalog() as edit:
        properties = None if property_ is None else parse_properties("--property", property_)
        fields = given(new_name=rename, owner=owner, properties=properties)
        fields |= given_texts(comment=comment) | dict(texts)
        altered = sharing.alter_share(edit, name, **fields)
    typer.echo(f"{altered.name} is at revision {altered.revision}")


@share_app.command("drop")
def drop(name: ShareName, yes: Yes = False) -> None:
    """Remove a share with its tables and the grants on it; the tables of the lake stay."""
    catalog = open_state_catalog()
    with catalog.reading() as session:
        share = states.get_share(session, name)
        tables, grants = states.list_objects(session, name), states.list_grants(session, share=name)
    question = f"Drop {share.name} with {len(tables)} shared tables and {len(grants)} grants?"
    drop_named(catalog, "share", share, question, yes=yes)


@share_app.command("add")
def add(
    name: ShareName,
    table: Annotated[str, typer.Argument(metavar="LAKE.TABLE", help="Lake's table, like flights.orders.")],
    as_: Annotated[
        str | None, typer.Option("--as", help="The recipients' name: schema.table; the same by default.")
    ] = None,
    comment: Comment = None,
    history: Annotated[bool, typer.Option(help="Recipients may read earlier versions and changes.")] = True,
    start_version: StartVersion = None,
    rule: Rule = None,
    view: Annotated[bool, typer.Option("--view", help="The table is a view.")] = False,
) -> None:
    """Add a table of the lake to a share.

    Example: lakeshare share add partners sales.orders --as eu.orders --where "region = 'EU'"
    """
    schema, alias = parse_table_path("--as" if as_ else "LAKE.TABLE", as_ or table)
    shared = states.SharedTable(
        schema=schema,
        name=alias,
        table=table,
        comment=comment,
        history=history,
        start_version=start_version,
        rule=rule or None,
        kind="VIEW" if view else "TABLE",
    )
    with edit_share(name, [table], writes_rule=bool(rule)) as edit:
        path = sharing.add_table(edit, name, shared).path
    typer.echo(f"{path} is {table}")


@share_app.command("change")
def change(
    path: TablePath,
    as_: Annotated[str | None, typer.Option("--as", help="The new name: schema.table.")] = None,
    comment: Comment = None,
    history: Annotated[
        bool | None, typer.Option("--history/--no-history", help="Whether earlier versions may be read.")
    ] = None,
    start_version: StartVersion = None,
    rule: Rule = None,
    publication: Annotated[int | None, typer.Option(min=-1, help="Publication; -1 for the latest.")] = None,
) -> None:
    """Change the given fields of a shared table; an empty text removes a comment or rule."""
    schema, alias = parse_table_path("--as", as_) if as_ else (None, None)
    fields = given(new_schema=schema, new_name=alias, history=history, start_version=start_version)
    fields |= given_texts(comment=comment, rule=rule)
    if publication is not None:
        fields["publication"] = None if publication < 0 else publication
    names = parse_shared_path("SHARE.SCHEMA.TABLE", path)
    with edit_share(names[0], writes_rule=bool(rule)) as edit:
        altered = sharing.alter_table(edit, *names, **fields)
    typer.echo(f"{altered.path} is {altered.table}")


@share_app.command("remove")
def remove(path: TablePath) -> None:
    """Remove a table from its share; the share and the grants on it stay."""
    names = parse_shared_path("SHARE.SCHEMA.TABLE", path)
    with edit_catalog() as edit:
        typer.echo(f"{sharing.remove_table(edit, *names).path} is shared no more")


@share_app.command("grant")
def grant_share(
    name: ShareName,
    recipient: Recipient = None,
    group: Group = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Start, like 2027-01-01T00:00:00Z; at once by default.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="End, like 2027-12-31T00:00:00Z; never by default.")
    ] = None,
    rule: Rule = None,
) -> None:
    """Grant a share to a recipient or to the members of a group; replaces an existing grant.

    Example: lakeshare share grant partners --recipient acme --until 2027-01-01T00:00:00Z
    """
    with edit_share(name, writes_rule=bool(rule)) as edit:
        granted = sharing.grant(
            edit,
            name,
            recipient=recipient,
            group=group,
            starts_at=parse_moment("--from", from_),
            ends_at=parse_moment("--until", until),
            rule=rule or None,
        )
    typer.echo(f"{granted.reader} may read {granted.share}")


@share_app.command("revoke")
def revoke_share(name: ShareName, recipient: Recipient = None, group: Group = None) -> None:
    """Revoke the grant of a share to a recipient or group, at once."""
    with edit_catalog() as edit:
        ended = sharing.revoke(edit, name, recipient=recipient, group=group)
    typer.echo(f"{ended.reader} may read {ended.share} no more by this grant")


def apply(
    files: Files,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show the changes: exit code 0 without changes, else 2.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Also remove objects that files created and no file names any more."),
    ] = False,
    configuration: ConfigurationName = None,
    take_from: Annotated[
        str | None, typer.Option(help="Another configuration, whose objects these files may take over.")
    ] = None,
    yes: Yes = False,
    expect: Annotated[str | None, typer.Option(help="Apply only the plan with this digest.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make followed tables, shares, recipients, groups and grants equal to files, all changes or none.

    Idempotent. Files define all fields of the objects they name, and never a secret. Objects of contracts, and those
    created by hand that are in no file, stay. Tables that files follow are read before anything is changed.

    Example: lakeshare apply -f shares/ --plan

    Example: lakeshare apply -f shares/ --prune --yes

    Example: lakeshare apply -f sales/ --configuration sales --prune
    """
    scope = declared.Configuration(configuration, take_from)
    desired, provider = _read_files(files), open_provider()
    catalog, versions = provider.catalog, provider.versions
    options: dict[str, Any] = {"prune": prune, "scope": scope}
    with following.FollowPrefetch(provider.settings, versions) as ahead:
        changes = declared.plan_changes(catalog, desired, **options)
        desired = ahead.read(desired, changes.steps)
        check = _make_rule_check(catalog, versions, ahead, desired, changes)
        carry_out = partial(declared.apply_files, catalog, desired, operator_name(), **options, check=check)
        if plan:
            changes = carry_out(dry_run=True)
            _print_plan(changes, as_json=as_json)
            raise typer.Exit(DIFFERS_EXIT_CODE if changes.steps else 0)
        if yes or expect is not None:
            changes = carry_out(digest=expect)
            _print_plan(changes, as_json=as_json)
        else:
            changes = declared.plan_changes(catalog, desired, **options)
            _print_plan(changes, as_json=as_json)
            if not changes.steps:
                return
            confirm("Do this?", f"give --yes, or --expect {changes.digest} for this plan and no other.")
            carry_out(digest=changes.digest)
    if changes.steps and not as_json:
        typer.echo(declared.format_applied(changes))
        _print_missing_tokens(changes)


def _read_files(files: list[Path]) -> "dict[Key, DesiredObject]":
    """The objects in files, with the tables of location patterns that they follow."""
    return declared.read_files(files, partial(following.find_tables, ServerSettings()))


def _make_rule_check(
    catalog: "Catalog",
    versions: "Versions",
    ahead: "LakeVersions",
    desired: "Mapping[Key, DesiredObject]",
    plan: "Plan",
) -> "Callable[[Edit], None]":
    """A check that refuses rules that partitions do not decide; followed tables are read now, before the edit."""
    from lakeshare_server.access.rules import require_decidable_rules

    shares = {step.key[1] for step in plan.steps if step.kind in ("share", "table", "grant")}
    if shares:
        with catalog.reading() as session:
            ruled = states.list_shares_with_rules(session) | {
                key[1] for key, wanted in desired.items() if wanted.fields.get("rule")
            }
            rows = states.list_objects(session)
            tables = {row.table for row in rows if row.share.lower() in shares & ruled}
        tables |= {
            str(wanted.fields.get("table"))
            for key, wanted in desired.items()
            if key[0] == "table" and key[1] in shares & ruled
        }
        following.prefetch_all_versions(catalog, versions, tables)
    return lambda edit: require_decidable_rules(edit, ahead)


def diff(files: Files, configuration: ConfigurationName = None, as_json: AsJson = False) -> None:
    """Show how the catalog differs from files, manual changes included: exit code 0 without differences, else 2.

    Example: lakeshare diff -f shares/
    """
    scope = declared.Configuration(configuration)
    changes = declared.plan_changes(open_state_catalog(), _read_files(files), scope=scope)
    _print_plan(changes, as_json=as_json)
    raise typer.Exit(DIFFERS_EXIT_CODE if changes.drifted else 0)


def export(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; standard output by default.")
    ] = None,
    revisions: Annotated[
        bool, typer.Option("--revisions", help="Include revisions, so that later edits are not overwritten.")
    ] = False,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Print the JSON Schema of the files instead, for editors.")
    ] = False,
) -> None:
    """Write the catalog's shares, recipients and grants as a file for `lakeshare apply`; without any secret."""
    if json_schema:
        text = json.dumps(declared.Document.model_json_schema(), indent=2) + "\n"
    else:
        with open_state_catalog().reading() as session:
            text = declared.export(session, revisions=revisions)
    if output is None:
        typer.echo(text, nl=False)
    else:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            hint = f"No file can be made there: {error.strerror}."
            raise BadRequest("--output", str(output), hint) from error
        typer.echo(f"written: {output}", err=True)


def _print_plan(plan: "Plan", *, as_json: bool) -> None:
    if as_json:
        print_json(declared.plan_json(plan))
        return
    for line in declared.format_plan(plan):
        typer.secho(line, fg=COLORS.get(line.lstrip()[:1]) if line.startswith(" ") else None)


def _print_missing_tokens(plan: "Plan") -> None:
    for step in plan.steps:
        fields = step.desired.fields if step.desired is not None else {}
        is_new = (step.kind, step.verb) == ("recipient", "create")
        if is_new and fields.get("authentication") != "OIDC_FEDERATION":
            typer.echo(f"{step.name} has no token yet: lakeshare recipient rotate {step.name}")


def sql(
    statements: Annotated[
        list[str] | None, typer.Option("--command", "-c", help="Statements; repeat for more, in order.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A script; `-`: standard input.")] = None,
    single_transaction: Annotated[
        bool, typer.Option("--single-transaction", help="All statements take effect, or none.")
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="table, csv or json.")] = "table",
) -> None:
    """Manage shares in SQL. Without a script: a prompt with history and completion.

    Exit codes: 0 success, 1 a statement was refused, 2 the script is not SQL and nothing was executed.

    Example: lakeshare sql -c "GRANT SELECT ON SHARE sales TO RECIPIENT bob UNTIL '2027-01-31'"
    """
    if output not in ("table", "csv", "json"):
        raise typer.BadParameter(f"{output!r} is none of table, csv, json", param_hint="--output")
    if statements and file:
        raise typer.BadParameter("give statements or a file, not both", param_hint="--command, --file")
    session = _open_session()
    if statements and single_transaction:
        # A `;` on its own line, so that a comment at the end of a statement does not swallow it.
        _execute(session, "\n;\n".join(statements), None, single_transaction, output)
    elif statements:
        for statement in statements:
            _execute(session, statement, None, single_transaction, output)
    elif file is not None or not sys.stdin.isatty():
        _execute(session, *_read_script(file or STDIN), single_transaction, output)
    elif single_transaction:
        hint = "--single-transaction"
        raise typer.BadParameter("a prompt has no end to commit at; give a script", param_hint=hint)
    else:
        from lakeshare_server.sql.session import prompt_with_history, run_prompt

        history = session.provider.settings.state_dir / "sql_history"
        typer.echo("SQL for shares, as " + session.principal + ". `help` shows how, Ctrl-D leaves.")
        prompt = prompt_with_history(session, history)
        run_prompt(session, prompt, lambda result: _print_result(result, output), _print_error)


def _open_session() -> "SqlSession":
    from lakeshare_server.sql.session import SqlSession

    provider, principal = open_provider(), operator_name()
    return SqlSession(provider, principal, partial(_read_rows, provider.settings, principal))


def _read_rows(
    settings: "ServerSettings", principal: str, recipient: str, path: tuple[str, ...], count: int
) -> "tuple[list[str], list[list[str]]]":
    """Columns and first rows of a table as a recipient reads it."""
    import asyncio

    from lakeshare_server.cli.impersonation import impersonate, table_url_path

    async def request_preview() -> tuple[list[str], list[list[str]]]:
        async with impersonate(settings, recipient, principal, "python-parquet") as client:
            page = await client.in_portal(f"{table_url_path('.'.join(path))}/preview", limit=count)
        columns = [column["name"] for column in page["columns"]]
        return columns, [["" if value is None else value for value in row] for row in page["rows"]]

    return asyncio.run(request_preview())


def _read_script(file: Path) -> tuple[str, str]:
    """A script and its name in messages."""
    try:
        if file == STDIN:
            return sys.stdin.read(), "stdin"
        # Editors on Windows begin files with a byte order mark.
        return file.read_text(encoding="utf-8-sig"), str(file)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest("--file", str(file), f"It cannot be read as UTF-8 text: {error}") from error


def _execute(
    session: "SqlSession", text: str, source: str | None, single_transaction: bool, output: str
) -> None:
    from lakeshare_server.sql.grammar import SqlError, StatementRefused

    try:
        for result in session.run(text, source, single_transaction=single_transaction):
            _print_result(result, output)
    except StatementRefused as error:
        _print_error(f"{error}\n{error.effect}")
        raise typer.Exit(REFUSED) from error
    except SqlError as error:
        _print_error(f"{error}\nNothing of it was done.")
        raise typer.Exit(NOT_SQL) from error


def _print_result(result: "StatementResult", output: str) -> None:
    from lakeshare_server.sql.session import PRINTED

    text = PRINTED[output](result)  # type: ignore[index]  # checked when the command began
    if text:
        typer.echo(text)
    elif result.result.message:
        typer.echo(result.result.message, err=True)


def _print_error(text: str) -> None:
    typer.secho(text, err=True, fg=typer.colors.RED)
