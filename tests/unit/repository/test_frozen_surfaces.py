"""Settings, YAML, commands, exit codes, error responses, OpenAPI and the SQLite schema stay as their snapshots.

Other surfaces have files of their own: `test_frozen_wire.py`, `test_frozen_definitions.py`, `test_frozen_schema.py`;
the schema of the files of `lakeshare apply` is in `docs/reference/`, and `test_apply_documents.py` compares it.
Descriptions and help texts are not part of the snapshots: their wording may improve.
"""

import asyncio
import inspect
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import typer
import yaml
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings
from starlette.routing import Mount

import lakeshare_pipelines.errors
import lakeshare_server.errors
from lakeshare_pipelines.cli.main import app as commands
from lakeshare_pipelines.contracts import Column, Reference, Rule, SetContract, Table
from lakeshare_pipelines.contracts.document import get_document
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.app import create_app
from lakeshare_server.catalog import database, open_catalog
from lakeshare_server.errors import LakeshareError
from lakeshare_server.settings import ServerSettings
from tests.builders.database_schema import MIGRATE, schema_lines
from tests.builders.json_schemas import field_lines
from tests.builders.snapshots import as_json, check_section, check_snapshot

tree_of = cache(typer.main.get_command)
[LAKESHARE] = entry_points(group="console_scripts", name="lakeshare")


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs `lakeshare` in an empty folder, as its console script does; gives the exit code and all output."""
    for name in LakeSettings.model_fields | ServerSettings.model_fields:
        monkeypatch.delenv(f"LAKESHARE_{name.upper()}", raising=False)
    monkeypatch.setenv("LAKESHARE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    # Building the tree of commands again for each of them would take most of the time.
    monkeypatch.setattr("typer.main.get_command", tree_of)
    main = LAKESHARE.load()

    def ended(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["lakeshare", *arguments])
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        assert isinstance(code, int), code
        return code, printed.out + printed.err

    return ended


# Settings


def all_settings() -> list[type[BaseSettings]]:
    def below(kind: type[BaseSettings]) -> Iterator[type[BaseSettings]]:
        yield kind
        for child in kind.__subclasses__():
            yield from below(child)

    found = [kind for kind in below(BaseSettings) if kind.__module__.startswith("lakeshare_")]
    return sorted(set(found), key=lambda kind: (len(kind.model_fields), kind.__name__))


def repr_of(default: Any) -> str:
    return str(default) if isinstance(default, Path) else repr(default)


def test_settings() -> None:
    lines = []
    for kind in all_settings():
        config = kind.model_config
        read = {name: config.get(name) for name in ("env_prefix", "env_file", "env_ignore_empty", "extra")}
        bases = [base.__name__ for base in kind.__bases__ if base is not BaseSettings]
        lines += [f"{kind.__name__} {' '.join(bases)}".rstrip(), f"  read as {read}"]
        inherited = {name for base in kind.__mro__[1:] for name in getattr(base, "model_fields", {})}
        schema = kind.model_json_schema(by_alias=False)
        types = {line.partition(":")[0]: line.partition(": ")[2] for line in field_lines(schema)}
        for name in sorted(set(kind.model_fields) - inherited):
            field = kind.model_fields[name]
            default = "made when first used" if field.default is PydanticUndefined else repr_of(field.default)
            assert field.default is not PydanticUndefined or field.default_factory is not None, name
            kept = types[name].rpartition("; ")[0]
            lines.append(f"  {config['env_prefix']}{name.upper()}: {kept}; default {default}")
        lines.append("")
    check_snapshot("settings.txt", "\n".join(lines))


# YAML


def model_with(package: str, *names: str) -> type[BaseModel]:
    """The only model of a package that has these fields, whatever it is called and wherever it is."""

    def below(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
        for child in kind.__subclasses__():
            yield child
            yield from below(child)

    def fields(kind: type[BaseModel]) -> set[str]:
        return {field.alias or name for name, field in kind.model_fields.items()}

    found = {
        kind
        for kind in below(BaseModel)
        if kind.__module__.startswith(package)
        and kind.model_config.get("extra") == "forbid"
        and fields(kind) >= set(names)
    }
    assert len(found) == 1, (names, found)
    return found.pop()


CONTRACT_PARTS = {
    "contract": SetContract,
    "table": Table,
    "column": Column,
    "rule": Rule,
    "relationship": Reference,
}


def test_yaml_of_contracts() -> None:
    text = []
    for title, kind in CONTRACT_PARTS.items():
        schema = get_document(kind).model_json_schema(by_alias=True)
        known, own = split_properties(schema)
        if kind is SetContract:
            schema["$defs"] = {name: split_properties(part)[0] for name, part in schema["$defs"].items()}
            text += ["# contract", *field_lines({**known, "$defs": schema["$defs"]}), ""]
        lines = field_lines({"properties": own, "$defs": schema.get("$defs", {})})
        text += [f"# customProperties of a {title}", *lines, ""]
    check_snapshot("yaml/contract.txt", "\n".join(text))


def split_properties(schema: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema without the customProperties of its element, and their schemas by name."""
    fields = schema.get("properties", {})
    own = {name.removeprefix("customProperties."): part for name, part in fields.items() if "." in name}
    kept = {name: part for name, part in fields.items() if "." not in name}
    return {**schema, "properties": kept}, own


def test_yaml_of_backups(run: Callable[..., tuple[int, str]]) -> None:
    assert run("backup", "list")[0] == 0
    schema = model_with("lakeshare_pipelines", "source", "target", "engine", "layout").model_json_schema()
    check_snapshot("yaml/backups.txt", "\n".join(["# backups.*", *field_lines(schema)]))


SHARES = "shares: {s: {tables: [a.x]}}\n"
CONTRACT: dict[str, Any] = {
    "apiVersion": "v3.1.0",
    "kind": "DataContract",
    "id": "orders",
    "name": "shop",
    "version": "1.0.0",
    "status": "active",
    "servers": [{"server": "lake", "type": "local", "format": "iceberg"}],
    "schema": [
        {
            "name": "orders",
            "customProperties": [{"property": "source", "value": "orders"}],
            "properties": [
                {"name": "id", "logicalType": "integer", "physicalType": "int", "primaryKey": True}
            ],
        }
    ],
}


def contract(**changed: Any) -> str:
    """The contract of one table; a field that is changed to None is left out."""
    return yaml.safe_dump({name: value for name, value in (CONTRACT | changed).items() if value is not None})


def custom(name: str, value: Any) -> list[dict[str, Any]]:
    return [{"property": name, "value": value}]


def column(**changed: Any) -> list[dict[str, Any]]:
    [table] = CONTRACT["schema"]
    return [{**table, "properties": [{**table["properties"][0], **changed}]}]


SHARED = {"share": "shop", "schema": "sales", "tables": ["orders", {"table": "orders", "name": "again"}]}
BACKUP = "backups: {b: {source: {url: /data}, target: {url: /copies}}}\n"
# Command, document, and a text that a refusal names: a line, a field, a value.
DOCUMENTS: dict[str, tuple[str, str, str]] = {
    "shares: names of tables": ("apply", SHARES, ""),
    "shares: a text for a table": ("apply", "shares: {s: {tables: {a.x: lake.x}}}", ""),
    "shares: nothing for a share": ("apply", "shares: {s: }", ""),
    "shares: every field": (
        "apply",
        "version: 1\n"
        "shares: {s: {comment: c, display_name: d, owner: o, properties: {k: v}, tables: {a.x: {table: lake.x, "
        "kind: VIEW, comment: c, history: false, start_version: 1, publication: 2, directory_access: false}}}}\n"
        "recipients: {r: {comment: c, authentication: OIDC_FEDERATION, ip_allow: [203.0.113.0/24], properties: {k: v}, "
        "expires_at: 2100-01-01T00:00:00Z, policies: {p: {issuer: 'https://i.example', subject: s, subject_claim: c, "
        "audiences: [a], comment: c}}}}\n"
        "groups: {g: {comment: c, members: [r]}}\n"
        "grants: [{share: s, recipient: r, starts_at: 2090-01-01T00:00:00Z, ends_at: 2095-01-01T00:00:00Z}, "
        "{share: s, group: g}]\n",
        "",
    ),
    "shares: an empty file": ("apply", "", ""),
    "shares: an unknown field": ("apply", "shares: {s: {comments: x}}", "shares.s.comments"),
    "shares: a secret": ("apply", "recipients: {r: {token: x}}", "recipients.r.token"),
    "shares: a wrong type": ("apply", "shares: {s: {comment: 1}}", "shares.s.comment"),
    "shares: a table without schema": ("apply", "shares: {s: {tables: [x]}}", "shares.s.tables"),
    "shares: two keys of a name": ("apply", "shares: {s: {comment: a, comment: b}}", "comment"),
    "shares: a grant without a reader": ("apply", SHARES + "grants: [{share: s}]", "grants[0]"),
    "shares: a time without zone": (
        "apply",
        "recipients: {r: {expires_at: 2100-01-01T00:00:00}}",
        "recipients.r.expires_at",
    ),
    "shares: another version": ("apply", "version: 2", "version"),
    "contract: one table": ("contract", contract(), ""),
    "contract: a team as a list of members": ("contract", contract(team=[{"username": "ann"}]), ""),
    "contract: shares of the set": ("contract", contract(customProperties=custom("shares", [SHARED])), ""),
    "contract: an unknown field": ("contract", contract(colour="red"), "colour"),
    "contract: a field is missing": ("contract", contract(kind=None), "kind"),
    "contract: a wrong type": ("contract", contract(version=1.5), "version"),
    "contract: an unknown custom property": (
        "contract",
        contract(customProperties=custom("colour", 1)),
        "colour",
    ),
    "contract: an unknown partitioning": (
        "contract",
        contract(customProperties=custom("partitioning", "yearly")),
        "customProperties[0].value",
    ),
    "contract: an unknown format": (
        "contract",
        contract(servers=[{"server": "lake", "type": "local", "format": "hudi"}]),
        "format",
    ),
    "contract: an unknown type of a column": (
        "contract",
        contract(schema=column(physicalType="blob")),
        "blob",
    ),
    "contract: a name with a space": ("contract", contract(schema=column(name="a b")), "a b"),
    "contract: no YAML": ("contract", "a: {b: c: d}", "contract.yaml:1: the file"),
    "backup: the two stores": ("backup", BACKUP, ""),
    "backup: no backups": ("backup", "other: {}", "backups"),
    "backup: an unknown field": (
        "backup",
        BACKUP.replace("source", "colour: red, source"),
        "backups.b.colour",
    ),
    "backup: a wrong value": ("backup", BACKUP.replace("source", "engine: tape, source"), "backups.b.engine"),
    "backup: a dated layout without a day": (
        "backup",
        BACKUP.replace("source", "layout: dated, source"),
        "backups.b.target.url",
    ),
    "backup: a lock on a folder": (
        "backup",
        BACKUP.replace("source", "lock: {mode: governance}, source"),
        "backups.b.lock",
    ),
    "backup: Batch Operations without an account": (
        "backup",
        BACKUP.replace("source", "engine: aws_batch, source"),
        "backups.b.engine",
    ),
}


def test_documents_that_are_accepted_and_refused(
    run: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []
    for case, (command, document, named) in DOCUMENTS.items():
        path = tmp_path / f"{command}.yaml"
        path.write_text(document)
        monkeypatch.setenv("LAKESHARE_BACKUPS_FILE", str(tmp_path / "backup.yaml"))
        arguments = {
            "apply": ("apply", "--plan", "-f", str(path)),
            "contract": ("contract", "check", str(path)),
            "backup": ("backup", "list", "b"),
        }[command]
        code, printed = run(*arguments)
        assert named in printed, (case, printed)
        # `apply --plan` ends with 2 when there is something to do.
        verdict = (
            "accepted" if code in ((0, 2) if command == "apply" else (0,)) else f"refused, names {named!r}"
        )
        lines.append(f"{case}: {verdict}, exit {code}")
    check_snapshot("yaml/documents.txt", "\n".join(lines))


# Commands


def commands_below(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from commands_below(command.commands[name], *path, name)


def parameter_line(parameter: click.Parameter) -> str:
    kind = parameter.type
    shown = kind.name if isinstance(kind, click.types.ParamType) else str(kind)
    if isinstance(kind, click.Choice):
        shown = f"one of {', '.join(str(one) for one in kind.choices)}"
    elif isinstance(kind, click.IntRange | click.FloatRange):
        shown += f" from {kind.min} to {kind.max}"
    elif isinstance(kind, click.Path):
        shown += f"(exists={kind.exists}, file_okay={kind.file_okay}, dir_okay={kind.dir_okay})"
    facts = [shown]
    if parameter.required:
        facts.append("required")
    if parameter.multiple or parameter.nargs != 1:
        facts.append("several" if parameter.nargs in (1, -1) else f"{parameter.nargs} values")
    default = parameter.default() if callable(parameter.default) else parameter.default
    if default not in (None, False) or (isinstance(default, int) and not isinstance(default, bool)):
        facts.append(f"default {(default.value if isinstance(default, Enum) else default)!r}")
    if parameter.envvar:
        facts.append(f"from {parameter.envvar}")
    if parameter.hidden if isinstance(parameter, click.Option) else False:
        facts.append("hidden")
    if isinstance(parameter, click.Option):
        names = " ".join([*sorted(parameter.opts), *("/" for _ in parameter.secondary_opts[:1])])
        names = f"{names} {' '.join(parameter.secondary_opts)}".rstrip()
        kind_of = "flag" if parameter.is_flag else "option"
        return f"  {kind_of} {names}: {', '.join(facts)}"
    return (
        f"  argument {parameter.make_metavar(click.Context(click.Command('lakeshare')))}: {', '.join(facts)}"
    )


def test_the_tree_of_commands() -> None:
    lines = []
    for path, command in commands_below(tree_of(commands)):
        facts = {
            "group": isinstance(command, click.Group),
            "runs alone": getattr(command, "invoke_without_command", False),
            "hidden": command.hidden,
            "deprecated": bool(command.deprecated),
        }
        noted = ", ".join(fact for fact, holds in facts.items() if holds)
        lines.append(" ".join(["lakeshare", *path]) + (f" ({noted})" if noted else ""))
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        options = sorted(
            (one for one in command.params if not isinstance(one, click.Argument)), key=lambda one: one.opts
        )
        lines += [parameter_line(one) for one in (*arguments, *options)]
    check_snapshot("commands.txt", "\n".join(lines))


def test_every_parameter_of_the_commands_has_its_help_printed(run: Callable[..., tuple[int, str]]) -> None:
    without = [
        (path, one.name)
        for path, command in commands_below(tree_of(commands))
        for one in command.params
        if not getattr(one, "help", None)
    ]
    assert without == []
    assert "The share's name." in run("share", "drop", "--help")[1]


# What is run, in this order, in one state folder.
COMMAND_LINES: tuple[str, ...] = (
    "--help",
    "",
    "nosuch",
    "publications lake.none",
    "share list",
    "share show none",
    "share create s",
    "share create s",
    "share create",
    "share create s --nosuch",
    "share drop s",
    "recipient list",
    "recipient show none",
    "recipient add r --share x",
    "recipient add r",
    "recipient add r",
    "recipient rotate none",
    "group list",
    "table list",
    "table show s.a.x",
    "table serveability lake.none",
    "table follow",
    "table follow /nowhere",
    "admin key list",
    "admin key add a --role owner",
    "admin key add a --role owner",
    "admin key add b --role king",
    "admin key revoke none",
    "activate none",
    "sql -c 'SHOW SHARES'",
    "sql -c 'DROP SHARE none'",
    "sql -c 'SELECT FROM WHERE'",
    "sql -c 'SHOW SHARES' --output xml",
    "apply -f nothere.yaml --plan",
    "apply -f shares.yaml --plan",
    "apply -f shares.yaml",
    "apply -f shares.yaml --expect 0000",
    "diff -f shares.yaml",
    "apply -f shares.yaml --yes",
    "diff -f shares.yaml",
    "apply -f shares.yaml --plan",
    "export",
    "audit verify",
    "audit search",
    "audit search --since never",
    "audit export events.jsonl",
    "audit prune",
    "usage",
    "as none shares",
    "as y shares",
    "as y tables nowhere",
    "as y query x.a.b",
    "explain nothere.share#x.a.b",
    "snippet x.a.b --engine pandas",
    "snippet x.a.b --engine abacus",
    "contract check",
    "contract check nothere.yaml",
    "contract show none",
    "contract show flights",
    "deliver none",
    "deliver flights",
    "backup list",
    "backup list none",
    "backup show lake 2030-01-01",
    "backup drill lake",
    "backup plan lake",
    "inventory status lake",
    "restore table",
    "down",
    "snowflake refresh lake.none",
    "publications",
    "rollback lake.none 1",
    "quarantine show flights",
    "conformance run",
    "conformance run nothere.share",
)


def test_exit_codes_of_commands(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    (tmp_path / "shares.yaml").write_text(
        "shares: {x: }\nrecipients: {y: }\ngrants: [{share: x, recipient: y}]\n"
    )
    lines = [f"{run(*shlex.split(line))[0]}  lakeshare {line}".rstrip() for line in COMMAND_LINES]
    lines += ["", "# Each command with an option that there is not"]
    for path, _ in commands_below(tree_of(commands)):
        lines.append(" ".join([f"{run(*path, '--no-such-option')[0]} ", "lakeshare", *path]))
    check_snapshot("exit_codes.txt", "\n".join(lines))


# Errors

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def classes_of(module: Any) -> list[type[LakeshareError]]:
    found = [
        kind for kind in vars(module).values() if inspect.isclass(kind) and issubclass(kind, LakeshareError)
    ]
    return sorted(set(found), key=lambda kind: kind.__name__)


def an_error(kind: type[LakeshareError]) -> LakeshareError:
    """An error of this class, of whatever its constructor takes."""
    values: dict[str, Any] = {
        "int": 1,
        "float": 1.0,
        "bool": True,
        "datetime": NOON,
        "Sequence": (),
        "Iterable": (),
        "Path": Path("/p"),
    }
    if kind.__init__ is Exception.__init__:
        return kind("what happened")
    given = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty:
            annotation = str(getattr(parameter.annotation, "__name__", parameter.annotation))
            given[name] = next((value for key, value in values.items() if annotation.startswith(key)), name)
    return kind(**given)


def test_every_error_ends_a_command_with_1_and_a_sentence(
    run: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {*classes_of(lakeshare_server.errors), *classes_of(lakeshare_pipelines.errors)}
    assert len(kinds) >= 30
    for kind in kinds:
        error = an_error(kind)

        def fail(*_: Any, raised: LakeshareError = error, **__: Any) -> None:
            raise raised

        monkeypatch.setattr(typer.Typer, "__call__", fail)
        assert run("share", "list") == (1, f"lakeshare: {error.for_provider()}\n"), kind


def test_responses_to_errors(tmp_path: Path) -> None:
    """Each class of errors raised behind a path of the three APIs."""
    app = create_app(ServerSettings(_env_file=None, state_dir=tmp_path / "state"))
    admin = next(route.app for route in app.routes if isinstance(route, Mount) and route.path == "/api")
    assert isinstance(admin, FastAPI)
    kinds = {kind.__name__: kind for kind in classes_of(lakeshare_server.errors)}

    async def fail(name: str) -> None:
        raise an_error(kinds[name])

    for router, path in (
        (app.router, "/raise/{name}"),
        (app.router, "/iceberg/v1/raise/{name}"),
        (admin.router, "/raise/{name}"),
    ):
        router.add_api_route(path, fail)
        router.routes.insert(0, router.routes.pop())
    apis = {"sharing": "/raise", "iceberg": "/iceberg/v1/raise", "admin": "/api/raise"}
    responses = responses_of(app, [f"{path}/{name}" for name in kinds for path in apis.values()])
    lines = []
    for name in kinds:
        lines.append(name)
        for api, path in apis.items():
            response = responses[f"{path}/{name}"]
            headers = {
                header: response.headers[header]
                for header in ("www-authenticate", "retry-after")
                if header in response.headers
            }
            body = without_message(response.json())
            lines.append(f"  {api}: {response.status_code} {body} {headers or ''}".rstrip())
    check_snapshot("error_responses.txt", "\n".join(lines))


def responses_of(app: FastAPI, paths: Iterable[str]) -> dict[str, httpx.Response]:
    """The responses of an application to GET, without a socket in between."""

    async def get() -> dict[str, httpx.Response]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://lakeshare") as client,
        ):
            return {path: await client.get(path) for path in paths}

    return asyncio.run(get())


def without_message(body: Mapping[str, Any]) -> str:
    def stripped(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: "…" if name == "message" else stripped(one) for name, one in value.items()}
        return value

    return " ".join(as_json(stripped(body), sort_keys=False).split())


# OpenAPI


def test_openapi(tmp_path: Path) -> None:
    app = create_app(ServerSettings(_env_file=None, state_dir=tmp_path / "state"))
    document = responses_of(app, ["/api/openapi.json"])["/api/openapi.json"].json()
    check_snapshot("openapi.json", as_json(without_texts(document)))


def without_texts(value: Any, parent: str = "") -> Any:
    """A document without what is only for people; a property may still be called `description`."""
    if isinstance(value, list):
        return [without_texts(one) for one in value]
    if not isinstance(value, dict):
        return value
    is_names = parent in ("properties", "schemas", "paths", "responses")
    return {
        name: without_texts(one, "" if is_names else name)
        for name, one in value.items()
        if is_names or not (name in ("description", "summary") and isinstance(one, str))
    }


# Database


def test_schema_of_a_migrated_sqlite_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "migrate", MIGRATE)
    catalog = open_catalog(f"sqlite:///{tmp_path / 'lakeshare.db'}")
    try:
        check_section("database.txt", "SQLite", "\n".join(schema_lines(catalog.engine)))
    finally:
        catalog.close()
