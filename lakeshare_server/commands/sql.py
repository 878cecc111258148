"""The command `lakeshare sql`."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.errors import BadRequest

if TYPE_CHECKING:
    from lakeshare_server.settings import ServerSettings
    from lakeshare_server.sql.session import Done, SqlSession

REFUSED, NOT_SQL = 1, 2
PARQUET = "python-parquet"
STDIN = Path("-")


def sql(
    statements: Annotated[
        list[str] | None, typer.Option("--command", "-c", help="Statements; repeat for more, in order.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A script; `-` reads standard input.")
    ] = None,
    single_transaction: Annotated[
        bool, typer.Option("--single-transaction", help="All statements take effect, or none.")
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="table, csv or json.")] = "table",
) -> None:
    """Say in SQL what is shared with whom. Without a script: a prompt with history and completion.

    Exit codes: 0 all was done, 1 a statement was refused, 2 the script is not SQL and nothing was done.

    Example: lakeshare sql -c "GRANT SELECT ON SHARE sales TO RECIPIENT bob UNTIL '2027-01-31'"
    """
    if output not in ("table", "csv", "json"):
        raise typer.BadParameter(f"{output!r} is none of table, csv, json", param_hint="--output")
    if statements and file:
        raise typer.BadParameter("give statements or a file, not both", param_hint="--command, --file")
    session = _session()
    if statements and single_transaction:
        # A `;` on a line of its own, lest a comment at the end of one swallows it.
        _do(session, "\n;\n".join(statements), None, single_transaction, output)
    elif statements:
        for statement in statements:
            _do(session, statement, None, single_transaction, output)
    elif file is not None or not sys.stdin.isatty():
        _do(session, *_script(file or STDIN), single_transaction, output)
    elif single_transaction:
        raise typer.BadParameter(
            "a prompt has no end to commit at; give a script", param_hint="--single-transaction"
        )
    else:
        _converse(session, output)


def _session() -> "SqlSession":
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.settings import ServerSettings
    from lakeshare_server.sql.principal import operating_system_user
    from lakeshare_server.sql.provider import Provider
    from lakeshare_server.sql.session import SqlSession

    settings = ServerSettings()
    principal = operating_system_user()
    provider = Provider(open_catalog(settings.catalog_url), settings)
    return SqlSession(provider, principal, partial(_rows_read_by, settings, principal))


def _rows_read_by(
    settings: "ServerSettings", principal: str, recipient: str, path: tuple[str, ...], count: int
) -> "tuple[list[str], list[list[str]]]":
    """The first rows of a table that a recipient reads, by the routes that answer it."""
    import asyncio

    from lakeshare_server.see_as.eyes import looking_as, path_of

    async def look() -> tuple[list[str], list[list[str]]]:
        async with looking_as(settings, recipient, principal, PARQUET) as eyes:
            found = await eyes.in_portal(f"{path_of('.'.join(path))}/preview", limit=count)
        columns = [column["name"] for column in found["columns"]]
        return columns, [["" if value is None else value for value in row] for row in found["rows"]]

    return asyncio.run(look())


def _script(file: Path) -> tuple[str, str]:
    """A script and what messages call it."""
    try:
        if file == STDIN:
            return sys.stdin.read(), "stdin"
        # Editors on Windows begin files with a mark that is no SQL.
        return file.read_text(encoding="utf-8-sig"), str(file)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest("--file", str(file), f"It cannot be read as UTF-8 text: {error}") from error


def _do(session: "SqlSession", text: str, source: str | None, single_transaction: bool, output: str) -> None:
    from lakeshare_server.sql.errors import SqlError, StatementRefused

    try:
        for answer in session.run(text, source, single_transaction=single_transaction):
            _say(answer, output)
    except StatementRefused as error:
        _complain(f"{error}\n{error.effect}")
        raise typer.Exit(REFUSED) from error
    except SqlError as error:
        _complain(f"{error}\nNothing of it was done.")
        raise typer.Exit(NOT_SQL) from error


def _converse(session: "SqlSession", output: str) -> None:
    from lakeshare_server.sql.prompt import converse, prompt_with_history

    history = session.provider.settings.state_dir / "sql_history"
    typer.echo("SQL for shares, as " + session.principal + ". `help` shows how, Ctrl-D leaves.")
    converse(session, prompt_with_history(session, history), lambda answer: _say(answer, output), _complain)


def _say(answer: "Done", output: str) -> None:
    from lakeshare_server.sql.output import PRINTED

    text = PRINTED[output](answer)  # type: ignore[index]  # checked when the command began
    if text:
        typer.echo(text)
    elif answer.result.told:
        typer.echo(answer.result.told, err=True)


def _complain(text: str) -> None:
    typer.secho(text, err=True, fg=typer.colors.RED)
