"""The page docs/reference/errors.md: every code of a response, every reason of a refusal, every error of a command.

What is in the code comes from the code: statuses, messages, reasons. Causes and remedies are in docs/_site/texts.yaml.
"""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lakeshare_server.errors import LakeshareError
from lakeshare_server.routes.admin import AdminErrors
from lakeshare_server.routes.errors import (
    BROKEN_OFF,
    ICEBERG_KINDS,
    ICEBERG_MISSING,
    NO_RESPONSE,
    ProtocolErrors,
)
from lakeshare_server.tables.serveability import ReasonCode

ROOT = Path(__file__).parents[2]
PACKAGES = ("lakeshare_server", "lakeshare_pipelines", "lakeshare_conformance")
CODE = re.compile(r"[A-Z]+(?:_[A-Z]+)+|ABORTED|UNAUTHENTICATED")
LOWER = re.compile(r"\b[a-z]+\b")
KIND = re.compile(r"[A-Z]\w+Exception")
APIS: tuple[type[ProtocolErrors], ...] = (ProtocolErrors, AdminErrors)


class Entry(NamedTuple):
    """One error of the page: its heading, and a text with which a user searches for it."""

    heading: str
    searched: str
    lines: list[str]


@cache
def read_texts() -> dict[str, Any]:
    texts: dict[str, Any] = yaml.safe_load((ROOT / "docs/_site/texts.yaml").read_text())
    return texts


@cache
def find_codes() -> dict[str, set[int]]:
    """Every code of the sharing protocol and the admin API with its HTTP statuses, by the tables of the code."""
    codes: dict[str, set[int]] = {BROKEN_OFF: {NO_RESPONSE}, "INTERNAL_ERROR": {500}}
    for api in APIS:
        pairs = [*api.responses.values(), *api.routing_codes.items(), (400, api.default_routing_code)]
        for status, code in pairs:
            codes.setdefault(code, set()).add(status)
    return codes


def read_sources(*folders: str) -> Iterator[ast.Module]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield ast.parse(path.read_text())


def list_sent_codes() -> set[str]:
    """Codes that the sources of the server name where they respond or write the audit log."""
    found = set()
    for module in read_sources(*(f"lakeshare_server/{part}" for part in ("routes", "pages", "access"))):
        for node in ast.walk(module):
            texts: list[ast.expr] = []
            match node:
                case ast.Call(func=ast.Name(id="error_response"), args=[_, code, *_]):
                    texts = [code]
                case ast.Tuple(elts=[ast.Constant(value=int()), code, *_]):
                    texts = [code]
                case ast.Assign(targets=targets, value=value) if "error_code" in ast.unparse(targets[-1]):
                    texts = [*getattr(value, "elts", [value])]
                case ast.Dict(values=values):
                    texts = [*values]
            found |= {
                text.value
                for text in texts
                if isinstance(text, ast.Constant)
                and isinstance(text.value, str)
                and CODE.fullmatch(text.value)
            }
    return found


def list_iceberg_kinds() -> dict[str, int]:
    """The types of the Iceberg REST API with their HTTP statuses."""
    kinds = {kind: status for status, kind in ICEBERG_KINDS.items()}
    return {**kinds, **dict.fromkeys(ICEBERG_MISSING.values(), 404), "InternalServerException": 500}


def list_sent_kinds() -> set[str]:
    """Types that the sources of the routes name."""
    return {
        node.value
        for module in read_sources("lakeshare_server/routes", "lakeshare_server/iceberg_rest")
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and KIND.fullmatch(node.value)
    }


def list_oauth_errors() -> dict[str, int]:
    """The errors of the token endpoint with their HTTP statuses, by the sources."""
    [module] = [ast.parse((ROOT / "lakeshare_server/routes/oauth.py").read_text())]
    return {
        str(node.args[1].value): int(str(node.args[0].value))
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_refused"
        if isinstance(node.args[0], ast.Constant) and isinstance(node.args[1], ast.Constant)
    }


@cache
def list_classes() -> dict[str, type[Exception]]:
    """The public classes of errors, by their headings on the page."""
    classes = [
        (".".join(path.relative_to(ROOT).with_suffix("").parts), node.name, set(map(ast.unparse, node.bases)))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    errors = {"LakeshareError", "ConformanceError"}
    while more := {name for _, name, bases in classes if bases & errors} - errors:
        errors |= more
    found: dict[str, type[Exception]] = {}
    # The server first: a class of the pipelines with the name of another has its package in its heading.
    for module, name, _ in sorted(
        classes, key=lambda one: (not one[0].endswith("errors"), one[0] < "lakeshare_s")
    ):
        if name in errors and not name.startswith("_") and name != "ConformanceError":
            kind = getattr(importlib.import_module(module), name)
            package = module.partition(".")[0].removeprefix("lakeshare_")
            # Anchors have no capitals: UNAUTHENTICATED is a code, too.
            is_taken = found.get(name, kind) is not kind or name.upper() in find_codes()
            found[f"{name} ({package})" if is_taken else name] = kind
    return found


def write_message(kind: type[Exception]) -> str | None:
    """The message of an error of a class, with its fields in capitals; None if the class leaves it to the code."""
    if not inspect.isfunction(kind.__init__):
        return None
    given: dict[str, Any] = {}
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            text = parameter.name.upper()
            given[parameter.name] = [text] if "Sequence" in str(parameter.annotation) else text
    try:
        error = kind(**given)
    except (TypeError, ValueError, AttributeError):
        return None  # a field is an object
    text = error.for_provider() if isinstance(error, LakeshareError) else str(error)
    message = re.sub(r"['`]", "", " ".join(text.split()))
    # Less is only fields of the code that raises it.
    return message if len(re.findall(LOWER, message)) > 2 else None


def write_anchor(heading: str) -> str:
    """The anchor that the site makes of a heading."""
    return re.sub(r"[()]", "", heading.lower()).replace(" ", "-")


def write_entry(
    heading: str, meaning: str, cause: str, remedy: str, *facts: tuple[str, str | None], searched: str = ""
) -> Entry:
    lines = [f"### {heading}", "", meaning, ""]
    lines += [f"* {name}: {value}" for name, value in facts if value]
    lines += [f"* Cause: {cause}", f"* Remedy: {remedy}", ""]
    return Entry(heading, searched or meaning, lines)


def list_code_entries() -> Iterator[Entry]:
    texts = read_texts()["codes"]
    for code, statuses in sorted(find_codes().items()):
        text = texts[code]
        raised = {
            kind.__name__ for api in APIS for kind, (_, other) in api.responses.items() if other == code
        }
        links = ", ".join(f"[{name}](#{name.lower()})" for name in sorted(raised))
        status = ", ".join(str(status) for status in sorted(statuses))
        facts = (("HTTP status", status), ("Errors of the server with this code", links))
        yield write_entry(code, text["meaning"], text["cause"], text["remedy"], *facts)


def list_iceberg_entries() -> Iterator[Entry]:
    for kind, status in list_iceberg_kinds().items():
        text = read_texts()["iceberg"][kind]
        yield write_entry(kind, text["meaning"], text["cause"], text["remedy"], ("HTTP status", str(status)))


def list_oauth_entries() -> Iterator[Entry]:
    for name, status in list_oauth_errors().items():
        text = read_texts()["oauth"][name]
        yield write_entry(name, text["meaning"], text["cause"], text["remedy"], ("HTTP status", str(status)))


def list_reason_entries() -> Iterator[Entry]:
    for code in ReasonCode:
        cause = read_texts()["reasons"][code.name]
        yield write_entry(code.name, code.sentence, cause, code.fix)


def list_class_entries() -> Iterator[Entry]:
    for heading, kind in list_classes().items():
        cause, remedy = read_texts()["classes"][heading]
        message = write_message(kind)
        meaning = " ".join((inspect.getdoc(kind) or cause).split("\n\n")[0].split())
        responses = sorted({api.responses[kind] for api in APIS if kind in api.responses})
        facts = (
            ("Message", None if message is None else f"`{message}`"),
            (
                "HTTP status and code",
                ", ".join(f"{status} [{code}](#{code.lower()})" for status, code in responses),
            ),
        )
        searched = max(message or "", meaning, key=lambda text: len(LOWER.findall(text)))
        yield write_entry(heading, meaning, cause, remedy, *facts, searched=searched)


SECTIONS = {
    "Codes of the sharing protocol and the admin API": list_code_entries,
    "Types of the Iceberg REST API": list_iceberg_entries,
    "Errors of the token endpoint": list_oauth_entries,
    "Reasons of refused tables": list_reason_entries,
    "Errors of commands and runs": list_class_entries,
}


def list_entries() -> Iterator[Entry]:
    for section in SECTIONS.values():
        yield from section()


def write_errors() -> str:
    """The page."""
    lines = ["# Errors", "", read_texts()["pages"]["errors"], ""]
    for title, section in SECTIONS.items():
        lines += [f"## {title}", "", read_texts()["sections"][title], ""]
        for entry in section():
            lines += entry.lines
    return "\n".join(lines)
