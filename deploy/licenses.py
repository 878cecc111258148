"""Licences of the locked packages, from their installed metadata, and whether deploy/licenses.toml allows them."""

import csv
import io
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import Distribution, PackageMetadata, PackageNotFoundError, distribution
from pathlib import Path

from boolean.boolean import ParseError
from license_expression import ExpressionError, LicenseExpression, get_spdx_licensing
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.distributions import list_locked

POLICY = Path(__file__).with_name("licenses.toml")


class LicenseRefused(Exception):
    """Packages whose licence is unknown or not allowed; the text names them and the remedy."""


# Reads the list of SPDX, which takes a tenth of a second.
get_licensing = cache(get_spdx_licensing)


@dataclass(frozen=True)
class Policy:
    """The content of licenses.toml."""

    runtime: list[str]
    tools: list[str]
    exceptions: dict[str, str]
    aliases: dict[str, str]
    stated: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Licensed:
    """A package and its licence, an SPDX expression; empty if it is unknown."""

    name: str
    version: str
    license: str
    is_tool: bool


def read_policy(path: Path = POLICY) -> Policy:
    return Policy(**tomllib.loads(path.read_text()))


@cache
def find_runtime_packages(root: str = "lakeshare") -> frozenset[str]:
    """Canonical names of what an installation with all extras gets on this platform, `root` included."""
    found: dict[str, set[str]] = {}
    waiting = [(root, set(distribution(root).metadata.get_all("Provides-Extra") or []))]
    while waiting:
        name, extras = waiting.pop()
        if name in found and extras <= found[name]:
            continue
        extras = found.setdefault(name, set()) | extras
        found[name] = extras
        waiting += list(_list_requirements(name, extras))
    return frozenset(found)


def _list_requirements(name: str, extras: set[str]) -> Iterator[tuple[str, set[str]]]:
    for text in distribution(name).requires or []:
        required = Requirement(text)
        if required.marker is None or any(
            required.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            yield canonicalize_name(required.name), set(required.extras)


def read_licenses(lock: str, policy: Policy) -> list[Licensed]:
    """The locked packages of this platform, by name.

    Raises:
        LicenseRefused: a package is locked for this platform and not installed.
    """
    runtime, found = find_runtime_packages(), []
    for name, version, marker in list_locked(lock):
        plain = canonicalize_name(name.partition("[")[0])
        if marker and not Marker(marker).evaluate():
            continue
        try:
            installed = distribution(plain)
        except PackageNotFoundError:
            raise LicenseRefused(f"{plain} {version} is locked and not installed: run make setup") from None
        found.append(Licensed(plain, version, find_license(installed, policy), plain not in runtime))
    return found


def find_license(installed: Distribution, policy: Policy) -> str:
    """The SPDX expression of an installed package; empty if its metadata has none that is known."""
    metadata = installed.metadata
    name = canonicalize_name(metadata["Name"])
    if stated := policy.stated.get(name) or policy.exceptions.get(name):
        return stated
    known = {candidate: policy.aliases.get(candidate, candidate) for candidate in _list_candidates(metadata)}
    return next((text for text in known.values() if parse_expression(text) is not None), "")


def _list_candidates(metadata: PackageMetadata) -> Iterator[str]:
    yield metadata.get("License-Expression") or ""
    yield (metadata.get("License") or "").strip()
    classifiers = metadata.get_all("Classifier") or []
    named = [
        text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License :: OSI Approved ::")
    ]
    # Several classifiers may mean any or all of them.
    if len(named) == 1:
        yield named[0]


def parse_expression(text: str) -> LicenseExpression | None:
    """An SPDX expression; None if it is none, or names licences that SPDX does not know."""
    if not text:
        return None
    try:
        parsed: LicenseExpression = get_licensing().parse(text, validate=True)
    except (ExpressionError, ParseError):
        return None
    return parsed


def is_allowed(expression: LicenseExpression, allowed: Iterable[str]) -> bool:
    """Whether one alternative of an expression has allowed licences only."""
    names, licensing = set(allowed), get_licensing()
    if isinstance(expression, licensing.OR):
        return any(is_allowed(each, names) for each in expression.args)
    if isinstance(expression, licensing.AND):
        return all(is_allowed(each, names) for each in expression.args)
    return str(expression) in names


def check_licenses(packages: Iterable[Licensed], policy: Policy) -> None:
    """Raises LicenseRefused with all packages that may not be used."""
    refused = []
    for package in packages:
        expression = parse_expression(package.license)
        allowed = [*policy.runtime, *(policy.tools if package.is_tool else ())]
        if expression is None:
            refused.append(
                f"{package.name} {package.version}: the licence is unknown; state it under [stated]"
            )
        elif package.license != policy.exceptions.get(package.name) and not is_allowed(expression, allowed):
            kind = "tools" if package.is_tool else "runtime packages"
            refused.append(f"{package.name} {package.version}: {package.license} is not allowed for {kind}")
    if refused:
        raise LicenseRefused("\n".join([*refused, f"The rules are in {POLICY.parent.name}/{POLICY.name}."]))


def format_report(packages: Iterable[Licensed]) -> str:
    """CSV with the columns name, version, license and use: `runtime` or `tool`."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["name", "version", "license", "use"])
    for package in packages:
        rows.writerow(
            [package.name, package.version, package.license, "tool" if package.is_tool else "runtime"]
        )
    return text.getvalue()
