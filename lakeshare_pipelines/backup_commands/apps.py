"""The three groups of commands; the modules beside this one fill them."""

import typer

inventory_app = typer.Typer(
    help="Listings of what a store holds: ask a store for its own reports, or make one.", no_args_is_help=True
)
backup_app = typer.Typer(
    help="Backups: plan, make and look at points, prove that they open, keep them as long as declared.",
    no_args_is_help=True,
)
restore_app = typer.Typer(
    help="The way back from a backup point: tables, sets, partitions, the catalog.", no_args_is_help=True
)
