"""`lakeshare conformance run`: the suite against the server of a profile."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lakeshare_conformance.case import Case
    from lakeshare_conformance.report import OnCase

PROGRESS_AFTER_S, PROGRESS_EVERY_S = 2, 5
WIDTH = 78

conformance_app = typer.Typer(
    help="Conformance: does a server keep the promises of the sharing protocol?", no_args_is_help=True
)


# With a single command and no callback, typer would run the command in place of the group.
@conformance_app.callback()
def conformance() -> None:
    """Does a server keep the promises of the sharing protocol?"""


@conformance_app.command("run")
def run_conformance(
    profile: Annotated[
        Path | None, typer.Argument(metavar="PROFILE", help="A profile file for the server to be tried.")
    ] = None,
    share: Annotated[str | None, typer.Option(help="Try this share only.")] = None,
    table: Annotated[str | None, typer.Option(help="Try this table only, as schema.table.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Try cases or groups of this name, like 'paging' or '*head*'; may be repeated."),
    ] = None,
    foreign: Annotated[
        Path | None,
        typer.Option(help="Profile file of a second recipient: its tables must not exist for the first one."),
    ] = None,
    expired: Annotated[
        Path | None, typer.Option(help="Profile file whose token has expired: it must be refused.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the report as JSON.")] = None,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write the report as JUnit XML.")] = None,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases and try none.")] = False,
) -> None:
    """Try a server of the Delta Sharing (OpenSharing) protocol over HTTP alone. Exit code 1 if any `must` fails."""
    from lakeshare_conformance.client import Client, ConformanceError, read_profile
    from lakeshare_conformance.report import Report, format_cases, run_cases, select_cases
    from lakeshare_conformance.targets import discover_targets

    try:
        cases = select_cases(only or [])
        if list_cases:
            typer.echo("\n".join(format_cases(cases)))
            return
        if profile is None:
            raise typer.BadParameter("give a profile, or --list to see the cases", param_hint="PROFILE")
        own = read_profile(profile)
        foreign_profile = read_profile(foreign, "--foreign") if foreign else None
        expired_profile = read_profile(expired, "--expired") if expired else None
        started_at, began = datetime.now(UTC), time.monotonic()
        with Client(own) as client:
            targets = discover_targets(
                client, own, share, table, foreign=foreign_profile, expired=expired_profile
            )
            outcomes = run_cases(cases, targets, make_progress_watch(began))
    except ConformanceError as error:
        typer.secho(f"lakeshare: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(1) from error
    if sys.stderr.isatty():
        typer.echo(f"\r{'':{WIDTH}}\r", nl=False, err=True)
    report = Report(targets, outcomes, started_at, time.monotonic() - began)
    typer.echo("\n".join(report.text()))
    if json_file is not None:
        report.write_json(json_file)
    if junit_file is not None:
        report.write_junit(junit_file)
    raise typer.Exit(1 if report.failed else 0)


def make_progress_watch(began: float) -> "OnCase":
    """Report the current case once a run takes a while: in place on a terminal, else every few seconds."""
    is_terminal = sys.stderr.isatty()
    reported_at = began + PROGRESS_AFTER_S - PROGRESS_EVERY_S

    def watch(number: int, total: int, case: "Case") -> None:
        nonlocal reported_at
        now = time.monotonic()
        if now - began < PROGRESS_AFTER_S or (not is_terminal and now - reported_at < PROGRESS_EVERY_S):
            return
        reported_at = now
        text = f"{number}/{total} {case.name}"[:WIDTH]
        typer.echo(f"\r{text:{WIDTH}}" if is_terminal else text, nl=not is_terminal, err=True)

    return watch
