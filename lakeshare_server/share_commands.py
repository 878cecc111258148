"""Commands about shares: what can be granted."""

import typer

from lakeshare_server.console import open_state_catalog

share_app = typer.Typer(help="Shares: what can be granted.", no_args_is_help=True)


@share_app.command("list")
def list_shares() -> None:
    """List what is shared under which name, and which publication recipients read."""
    from lakeshare_server.catalog import Ledger
    from lakeshare_server.catalog.listings import all_shared_tables

    catalog = open_state_catalog()
    ledger = Ledger(catalog)
    for entry in all_shared_tables(catalog):
        latest = ledger.latest(entry.lake_table)
        number = "not published yet" if latest is None else f"publication {latest.version}"
        typer.echo(f"{entry.path}\t{entry.lake_table}\t{number}")
