"""Shared by the commands: the catalog of this machine's settings, the operator, confirmation, and parsers."""

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lakeshare_server.errors import BadRequest, LakeshareError
from lakeshare_server.settings import ServerSettings, StateSettings
from lakeshare_server.text_fields import TEXT_FIELDS, TextField, TextOwner

if TYPE_CHECKING:
    import httpx

    from lakeshare_server.catalog import Catalog
    from lakeshare_server.catalog.sharing import Edit
    from lakeshare_server.catalog.states import Group, RecipientState, Share
    from lakeshare_server.provider.following import Provider


class ServerRefused(LakeshareError):
    """A sharing server refused a recipient's request."""

    def __init__(self, response: "httpx.Response", recipient: str = "The recipient") -> None:
        try:
            body = response.json()
            text = f"{body['errorCode']}: {body['message']}"
        except (ValueError, KeyError, TypeError):
            text = response.text[:300]
        super().__init__(f"{recipient} gets {response.status_code} {text}")


def open_state_catalog() -> "Catalog":
    """The catalog that LAKESHARE_DATABASE_URL or LAKESHARE_STATE_DIR names."""
    from lakeshare_server.catalog import open_catalog

    return open_catalog(StateSettings().catalog_url)


def open_provider() -> "Provider":
    """The catalog and what it needs to open tables, of this machine's settings."""
    from lakeshare_server.catalog import open_catalog
    from lakeshare_server.provider.following import Provider

    settings = ServerSettings()
    return Provider(open_catalog(settings.catalog_url), settings)


@contextmanager
def edit_catalog() -> "Iterator[Edit]":
    """One transaction on the catalog, in the operator's name."""
    from lakeshare_server.catalog.sharing import editing

    with editing(open_state_catalog(), operator_name()) as edit:
        yield edit


def given(**options: Any) -> dict[str, Any]:
    """The options that are given, as fields of a change."""
    return {name: value for name, value in options.items() if value is not None}


def given_texts(**options: str | None) -> dict[str, Any]:
    """The texts that are given, as fields of a change; an empty text is None, which empties the field."""
    return {name: text or None for name, text in options.items() if text is not None}


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(value: Any) -> None:
    """Print a value as JSON, times in ISO 8601."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=datetime.isoformat))


def print_table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> None:
    """Print rows: in columns on a terminal, else a line each with tabs between its cells. None is an empty cell."""
    lines = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        for cells in [[*header], *lines] if header else lines:
            typer.echo("\t".join(cells).rstrip())
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD if header else None, show_header=bool(header), pad_edge=False)
    for index in range(max((len(cells) for cells in [[*header], *lines]), default=0)):
        table.add_column(header[index].lower() if index < len(header) else "", overflow="fold")
    for cells in lines:
        table.add_row(*map(Text, cells))
    Console().print(table)


Command = Callable[..., None]
Texts = Mapping[str, str | None]


def text_options(owner: TextOwner) -> Callable[[Command], Command]:
    """Give a command an option for each text of an object; `texts` has those given, None for an empty one."""
    texts = TEXT_FIELDS[owner]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def run(**arguments: Any) -> None:
            options = {text: arguments.pop(text.name) for text in texts}
            given_options = {text: value for text, value in options.items() if value is not None}
            command(
                **arguments,
                texts={text.name: _read_text(text, value) for text, value in given_options.items()},
            )

        signature = inspect.signature(command, eval_str=True)
        own = [parameter for name, parameter in signature.parameters.items() if name != "texts"]
        added = [
            inspect.Parameter(
                text.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(text)
            )
            for text in texts
        ]
        parameters = sorted([*own, *added], key=lambda parameter: parameter.kind)
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # of any function
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _option(text: TextField) -> Any:  # an annotation
    if text.from_file:
        return Annotated[Path | None, typer.Option(help=f"{text.description} A text file.")]
    return Annotated[str | None, typer.Option(help=f"{text.description} Like: {text.example}")]


def _read_text(text: TextField, value: str | Path) -> str | None:
    if not isinstance(value, Path):
        return value or None
    try:
        return value.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        option = f"--{text.name.replace('_', '-')}"
        raise BadRequest(option, str(value), f"Give a readable text file: {error}.") from error


@contextmanager
def edit_share(share: str, tables: Iterable[str] = (), *, writes_rule: bool) -> "Iterator[Edit]":
    """One transaction on a share and the lake's tables it gets; raises `BadRequest` for an undecidable rule."""
    from lakeshare_server.access.rules import require_decidable_rules
    from lakeshare_server.catalog.sharing import editing
    from lakeshare_server.provider.following import prefetch_versions

    provider = open_provider()
    prefetch_versions(provider.catalog, provider.versions, share, tables, writes_rule=writes_rule)
    with editing(provider.catalog, operator_name()) as edit:
        yield edit
        require_decidable_rules(edit, provider.versions)


def operator_name() -> str:
    """The operator's name for the audit log."""
    from lakeshare_server.catalog.sharing import operating_system_user

    return operating_system_user()


def confirm(question: str, otherwise: str = "give --yes.") -> None:
    """Ask on the terminal whether to go on; raises `typer.Abort` for no, `BadRequest` without a terminal."""
    if not sys.stdin.isatty():
        raise BadRequest("--yes", "not given", f"{question} This is not a terminal: {otherwise}")
    typer.confirm(question, abort=True, err=True)


def drop_named(
    catalog: "Catalog", kind: str, state: "Share | RecipientState | Group", question: str, *, yes: bool
) -> None:
    """Drop an object after a question, at its revision: additions made meanwhile are not dropped unseen."""
    from lakeshare_server.catalog.sharing import NAMED, editing

    if not yes:
        confirm(question)
    with editing(catalog, operator_name()) as edit:
        NAMED[kind].drop(edit, state.name, revision=state.revision)
    typer.echo(f"{state.name} is gone")


def parse_moment(option: str, text: str | None) -> datetime | None:
    """A time with its zone in ISO 8601; raises `BadRequest` for anything else."""
    if text is None:
        return None
    with suppress(ValueError, OverflowError):
        parsed = datetime.fromisoformat(text)
        if parsed.tzinfo is not None:
            return parsed.astimezone(UTC)
    raise BadRequest(option, text, "Give a time with its zone, like 2027-01-01T00:00:00Z.")


def shift_now(option: str, days: int, direction: Literal[1, -1] = 1) -> datetime:
    """The moment so many days after now, or before it; raises `BadRequest` for one that no calendar has."""
    try:
        return datetime.now(UTC) + direction * timedelta(days=days)
    except OverflowError as error:
        raise BadRequest(option, days, "Give fewer days: years are from 1 to 9999.") from error


def parse_properties(option: str, pairs: Sequence[str]) -> dict[str, str]:
    """A dictionary of `key=value` texts; raises `BadRequest` for a text without `=`."""
    properties = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadRequest(option, pair, "Give key=value, like region=EU.")
        properties[key] = value
    return properties


def parse_table_path(option: str, text: str) -> tuple[str, str]:
    """The schema and the name in `schema.table`; raises `BadRequest` for anything else."""
    schema, dot, name = text.partition(".")
    if not dot or not schema or not name or "." in name:
        raise BadRequest(option, text, "Give schema.table, like sales.orders.")
    return schema, name


def parse_shared_path(option: str, text: str) -> tuple[str, str, str]:
    """The share, the schema and the name in `share.schema.table`; raises `BadRequest` for anything else."""
    names = text.split(".")
    if len(names) != 3 or not all(names):
        raise BadRequest(option, text, "Give share.schema.table, like partners.sales.orders.")
    return names[0], names[1], names[2]
