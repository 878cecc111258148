"""The generated pages of docs/reference/: commands, settings, calls, errors and metrics.

`make docs-reference` writes them; `tests/unit/repository/test_reference_pages.py` compares them.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import click
import typer
from fastapi import FastAPI
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from lakeshare_pipelines.cli.main import app as commands
from lakeshare_pipelines.settings import LakeSettings
from lakeshare_server.app import create_app
from lakeshare_server.metrics import LABELS, Metric, list_metrics
from lakeshare_server.settings import ServerSettings, StateSettings, StoreSettings
from tests.builders.error_reference import ROOT, read_texts, write_errors

REFERENCE = ROOT / "docs/reference"
GENERATED = "<!-- Written by `make docs-reference`: do not edit. -->"


# Commands


def list_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and group that is not hidden, with its whole name."""

    def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield name, command
        if isinstance(command, click.Group):
            for child in sorted(command.commands):
                if not command.commands[child].hidden:
                    yield from below(f"{name} {child}", command.commands[child])

    return below("lakeshare", typer.main.get_command(commands))


def write_commands() -> str:
    lines = ["# Commands", "", read_texts()["pages"]["commands"], ""]
    for name, command in list_commands():
        level = "##" if name.count(" ") < 2 else "###"
        lines += [f"{level} {name}", "", *write_help(command.help or "")]
        if isinstance(command, click.Group):
            names = [
                f"{name} {child}" for child in sorted(command.commands) if not command.commands[child].hidden
            ]
            lines += [" · ".join(f"[{child}](#{child.replace(' ', '-')})" for child in names), ""]
        rows = [write_parameter(one) for one in command.params if is_shown(one)]
        if rows:
            lines += ["| parameter | value | default | |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def is_shown(parameter: click.Parameter) -> bool:
    return parameter.name != "help" and not getattr(parameter, "hidden", False)


def write_help(text: str) -> list[str]:
    """The paragraphs of a help text; an example becomes code."""
    lines = []
    for paragraph in text.replace("\b\n", "").split("\n\n"):
        words = " ".join(paragraph.split())
        example = re.fullmatch(r"Example: (lakeshare .+)", words)
        lines += [f"Example: `{example[1]}`" if example else escape(words), ""]
    return lines


def write_parameter(parameter: click.Parameter) -> str:
    context = click.Context(click.Command("lakeshare"))
    if isinstance(parameter, click.Option):
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        value = "" if parameter.is_flag else f"{name_type(parameter.type)}"
    else:
        names = f"`{parameter.make_metavar(context)}`"
        value = name_type(parameter.type)
    if parameter.multiple if isinstance(parameter, click.Option) else parameter.nargs != 1:
        value += ", several"
    default = parameter.default() if callable(parameter.default) else parameter.default
    default = default.value if isinstance(default, Enum) else default
    is_given = default not in (None, False, "", ()) and not isinstance(default, list)
    shown = "required" if parameter.required else f"`{default}`" if is_given else ""
    if parameter.envvar:
        shown += f" `{parameter.envvar}`"
    return f"| {names} | {value} | {shown} | {escape(getattr(parameter, 'help', None) or '')} |"


def name_type(kind: click.ParamType) -> str:
    if isinstance(kind, click.Choice):
        return ", ".join(f"`{getattr(choice, 'value', choice)}`" for choice in kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        bounds = (kind.min is not None, kind.max is not None)
        limits = {
            (True, True): f"from {kind.min} to {kind.max}",
            (True, False): f"from {kind.min}",
            (False, True): f"to {kind.max}",
        }.get(bounds, "")
        return f"number {limits}".strip()
    return {"integer": "number", "float": "number", "boolean": "yes or no"}.get(kind.name, kind.name)


def escape(text: str) -> str:
    """A text for a cell: names in angle brackets and columns of tables stay text."""
    named = re.sub(r"(?<!`)\bLAKESHARE_[A-Z0-9_]+\b(?!`)", r"`\g<0>`", " ".join(text.split()))
    parts = re.split(r"(`[^`]*`)", named)
    return "".join(
        part.replace("|", "\\|") if part.startswith("`") else
        part.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
        for part in parts
    )  # fmt: skip


# Settings

SETTINGS: dict[type[BaseSettings], tuple[str, str]] = {
    StateSettings: ("State and tables", "Pipelines and server share them: both must have the same values."),
    StoreSettings: ("Object stores", "For the server, the pipelines and backups."),
    ServerSettings: ("Server", "Of the sharing server only."),
    LakeSettings: ("Pipelines", "Of the runs, the commands of pipelines and Dagster."),
}


def list_settings() -> Iterator[tuple[type[BaseSettings], str, FieldInfo]]:
    """Every setting with the class that defines it and its variable."""
    for kind in SETTINGS:
        inherited = {name for base in kind.__bases__ for name in getattr(base, "model_fields", {})}
        for name, field in kind.model_fields.items():
            if name not in inherited:
                yield kind, f"LAKESHARE_{name.upper()}", field


def write_settings() -> str:
    lines = ["# Settings", "", read_texts()["pages"]["settings"], ""]
    for kind, (title, text) in SETTINGS.items():
        lines += [f"## {title}", "", text, ""]
        for owner, variable, field in list_settings():
            if owner is kind:
                value, default = name_value(field.annotation, field.metadata), show_default(field)
                lines += [f"#### {variable}", "", escape(field.description or ""), ""]
                lines += [f"Value: {value}." + (f" Default: {default}." if default else ""), ""]
    return "\n".join(lines)


def name_value(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    arguments = [one for one in get_args(annotation) if one is not type(None)]
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if arguments:
        return name_value(arguments[0], [*metadata, *getattr(annotation, "__metadata__", ())])
    limits = {
        words: getattr(part, name)
        for part in metadata
        for name, words in (("ge", "from"), ("gt", "more than"), ("le", "to"))
        if getattr(part, name, None) is not None
    }
    names = {int: "number", float: "number", bool: "`true`, `false`", SecretStr: "secret", Path: "path"}
    return " ".join([names.get(annotation, "text"), *(f"{words} {limit}" for words, limit in limits.items())])


def show_default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "computed"
    default = field.default
    if default is None or default == "":
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


# Calls


@cache
def make_app() -> FastAPI:
    """The server's application, over an empty state; its routes are read only."""
    with tempfile.TemporaryDirectory() as folder:
        app = create_app(ServerSettings(_env_file=None, state_dir=Path(folder)))
        app.state.app_state.catalog.close()
    return app


ROUTES = {
    "/delta-sharing": "Sharing protocol",
    "/iceberg": "Iceberg REST catalog",
    "/portal": "Portal",
    "/": "Server",
}


def list_routes() -> Iterator[tuple[str, str, str]]:
    """The calls for recipients, probes and pages: methods, path and the name of the text."""
    for route in make_app().routes:
        contexts = getattr(route, "effective_route_contexts", lambda route=route: [route])()
        for one in contexts:
            if getattr(one, "methods", None):
                methods = set(one.methods) - {"HEAD"} or {"HEAD"}
                shown = "any" if len(methods) >= 5 else ", ".join(sorted(methods))
                yield shown, one.path, one.name


def list_admin_calls() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """The calls of the admin API by its OpenAPI document: method, path, operation."""
    [admin] = [route.app for route in make_app().routes if getattr(route, "path", "") == "/api"]
    for path, operations in admin.openapi()["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), f"/api{path}", operation


def write_api() -> str:
    lines = ["# API", "", read_texts()["pages"]["api"], ""]
    texts, listed = read_texts()["routes"], list(list_routes())
    for prefix, title in ROUTES.items():
        lines += [
            f"## {title}",
            "",
            read_texts()["sections"][title],
            "",
            "| method | path | |",
            "|---|---|---|",
        ]
        found = [one for one in listed if one[1].startswith(prefix)]
        listed = [one for one in listed if one not in found]
        lines += [
            f"| {methods} | `{path}` | {texts[name]} |"
            for methods, path, name in sorted(found, key=itemgetter(1, 0))
        ]
        lines.append("")
    lines += ["## Admin API", "", read_texts()["sections"]["Admin API"], ""]
    calls = list(list_admin_calls())
    for tag in dict.fromkeys(operation["tags"][0] for _, _, operation in calls):
        lines += [f"### {tag.capitalize()}", "", "| method | path | |", "|---|---|---|"]
        for method, path, operation in calls:
            if operation["tags"][0] == tag:
                lines.append(
                    f"| {method} | `{path}` | {escape(operation['description'].partition(chr(10))[0])} |"
                )
        lines.append("")
    return "\n".join(lines)


# Metrics

PROGRAMS = {"server": "Of the server", "pipelines": "Of `lakeshare metrics`"}


def name_metric(metric: Metric) -> str:
    """The name as Prometheus stores it; a histogram has three, which begin with it."""
    return f"{metric.name}_total" if metric.kind == "counter" else metric.name


def write_metrics() -> str:
    lines = ["# Metrics", "", read_texts()["pages"]["metrics"], ""]
    for program, title in PROGRAMS.items():
        lines += [f"## {title}", ""]
        for metric in (one for one in list_metrics() if one.program == program):
            labels = ", ".join(f"`{label}`" for label in metric.labels)
            what = f"Type: {metric.kind}." + (f" Labels: {labels}." if labels else "")
            lines += [f"### {name_metric(metric)}", "", escape(metric.help), "", what, ""]
    lines += ["## Labels", "", "| label | value |", "|---|---|"]
    lines += [f"| `{label}` | {text} |" for label, text in LABELS.items()]
    return "\n".join(lines)


PAGES = {
    "commands.md": write_commands,
    "settings.md": write_settings,
    "api.md": write_api,
    "errors.md": write_errors,
    "metrics.md": write_metrics,
}


def write_page(name: str) -> str:
    title, _, rest = PAGES[name]().partition("\n")
    return f"{title}\n\n{GENERATED}\n{rest.rstrip()}\n"


if __name__ == "__main__":
    for name in PAGES:
        (REFERENCE / name).write_text(write_page(name), encoding="utf-8")
