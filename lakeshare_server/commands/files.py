"""Commands that make the catalog what files say, show the difference, and write the catalog as a file."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakeshare_server.commands.console import ask, open_state_catalog, open_versions, operator

if TYPE_CHECKING:
    from lakeshare_server.access.rules import LakeVersions
    from lakeshare_server.catalog import Catalog
    from lakeshare_server.catalog.declared import Plan
    from lakeshare_server.catalog.declared.objects import Key, Wanted
    from lakeshare_server.catalog.sharing import Edit
    from lakeshare_server.versions import Versions

DIFFERENT = 2
COLORS = {"+": typer.colors.GREEN, "~": typer.colors.YELLOW, "-": typer.colors.RED, "?": typer.colors.CYAN}

Files = Annotated[
    list[Path], typer.Option("--file", "-f", help="A YAML file, or a folder of them; repeat for more.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Tell it as JSON.")]


def apply(
    files: Files,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Only show what would be done: exit code 0 for nothing, 2 for changes."),
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Also remove what files made and no file names any more.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    expect: Annotated[
        str | None, typer.Option("--expect", help="Do nothing but the plan of this digest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make followed tables, shares, recipients, groups and grants what files say, all of it or nothing.

    Twice changes nothing. Files say everything about the objects they name, and never a secret. What contracts declare,
    and what was made by hand and is in no file, stays. Tables that files follow are read before anything is changed.

    Example: lakeshare apply -f shares/ --plan

    Example: lakeshare apply -f shares/ --prune --yes
    """
    from lakeshare_server.access.following import FollowingAhead
    from lakeshare_server.catalog.declared import apply_files, done, planned, tried
    from lakeshare_server.settings import ServerSettings

    wanted, catalog = _read(files), open_state_catalog()
    versions = open_versions(catalog)
    with FollowingAhead(ServerSettings(), versions) as ahead:
        found = planned(catalog, wanted, prune=prune)
        wanted = ahead.read(wanted, found.steps)
        check = _check_of_rules(catalog, versions, ahead, wanted, found)
        if plan:
            found = tried(catalog, wanted, operator(), prune=prune, check=check)
            _tell(found, as_json=as_json)
            raise typer.Exit(DIFFERENT if found.steps else 0)
        if yes or expect is not None:
            found = apply_files(catalog, wanted, operator(), prune=prune, digest=expect, check=check)
            _tell(found, as_json=as_json)
        else:
            found = planned(catalog, wanted, prune=prune)
            _tell(found, as_json=as_json)
            if not found.steps:
                return
            ask("Do this?", f"give --yes, or --expect {found.digest} for this plan and no other.")
            apply_files(catalog, wanted, operator(), prune=prune, digest=found.digest, check=check)
    if found.steps and not as_json:
        typer.echo(done(found))
        _tell_without_token(found)


def _read(files: list[Path]) -> "dict[Key, Wanted]":
    """What files want, with the tables of the locations that they follow."""
    from lakeshare_server.access.following import find_tables
    from lakeshare_server.catalog.declared import read_files
    from lakeshare_server.settings import ServerSettings

    return read_files(files, partial(find_tables, ServerSettings()))


def _check_of_rules(
    catalog: "Catalog",
    versions: "Versions",
    ahead: "LakeVersions",
    wanted: "Mapping[Key, Wanted]",
    plan: "Plan",
) -> "Callable[[Edit], None]":
    """A check that refuses rules that partitions do not decide; followed tables are looked at now, before the edit."""
    from lakeshare_server.access.rules import require_decidable_rules
    from lakeshare_server.access.versions_ahead import find_all_ahead
    from lakeshare_server.catalog.sharing.look import objects, shares_with_rules

    shares = {step.key[1] for step in plan.steps if step.kind in ("share", "table", "grant")}
    if shares:
        with catalog.reading() as session:
            ruled = shares_with_rules(session) | {
                key[1] for key, one in wanted.items() if one.fields.get("rule")
            }
            tables = {one.table for one in objects(session) if one.share.lower() in shares & ruled}
        said = (one for key, one in wanted.items() if key[0] == "table" and key[1] in shares & ruled)
        find_all_ahead(catalog, versions, tables | {str(one.fields.get("table")) for one in said})
    return lambda edit: require_decidable_rules(edit, ahead)


def diff(files: Files, as_json: AsJson = False) -> None:
    """Show how the catalog differs from files, what was changed by hand too: exit code 0 for not at all, 2 if it does.

    Example: lakeshare diff -f shares/
    """
    from lakeshare_server.catalog.declared import planned

    found = planned(open_state_catalog(), _read(files))
    _tell(found, as_json=as_json)
    raise typer.Exit(DIFFERENT if found.drifted else 0)


def export(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; standard output by default.")
    ] = None,
    revisions: Annotated[
        bool,
        typer.Option(
            "--revisions",
            help="With revisions: what was edited meanwhile is not overwritten by it.",
        ),
    ] = False,
    json_schema: Annotated[
        bool, typer.Option("--json-schema", help="Instead, the JSON Schema of the files, for editors.")
    ] = False,
) -> None:
    """Write what the catalog shares with whom as a file for `lakeshare apply`; without any secret."""
    from lakeshare_server.catalog.declared import Document
    from lakeshare_server.catalog.declared import export as exported

    if json_schema:
        text = json.dumps(Document.model_json_schema(), indent=2) + "\n"
    else:
        with open_state_catalog().reading() as session:
            text = exported(session, revisions=revisions)
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
        typer.echo(f"written: {output}", err=True)


def _tell(plan: "Plan", *, as_json: bool) -> None:
    from lakeshare_server.catalog.declared import plan_json, plan_lines

    if as_json:
        typer.echo(json.dumps(plan_json(plan), indent=2, ensure_ascii=False))
        return
    for line in plan_lines(plan):
        typer.secho(line, fg=COLORS.get(line.lstrip()[:1]) if line.startswith(" ") else None)


def _tell_without_token(plan: "Plan") -> None:
    for step in plan.steps:
        fields = step.wanted.fields if step.wanted is not None else {}
        is_new = (step.kind, step.verb) == ("recipient", "create")
        if is_new and fields.get("authentication") != "OIDC_FEDERATION":
            typer.echo(f"{step.name} has no token yet: lakeshare recipient rotate {step.name}")
