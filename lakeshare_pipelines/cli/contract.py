"""The commands of `lakeshare contract`: check, show and compare contracts, draft one from data, test one on files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lakeshare_pipelines.contracts import SetContract
    from lakeshare_pipelines.settings import LakeSettings

contract_app = typer.Typer(help="Contracts: the YAML that describes a set.", no_args_is_help=True)

ContractFile = Annotated[Path, typer.Argument(metavar="CONTRACT", help="The YAML file of a contract.")]


@contract_app.command("check")
def check(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files; the configured ones by default.")] = None,
) -> None:
    """Load contracts and report their errors."""
    from lakeshare_pipelines.contracts import load_contract

    for contract in [load_contract(path) for path in paths] if paths else list_contracts():
        tables = ", ".join(table.name for table in contract.tables)
        typer.echo(f"ok  {contract.name} {contract.version} ({contract.path.name}): {tables}")


@contract_app.command("show")
def show(set_name: Annotated[str, typer.Argument(metavar="SET")]) -> None:
    """Describe a set."""
    from lakeshare_pipelines.contracts.model import describe

    typer.echo(describe(find_contract(set_name)))


@contract_app.command("diff")
def diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The contract's file as it was.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The contract's file as it is to be.")],
) -> None:
    """List the changes between two versions of a contract, with their class: breaking, minor or patch.

    Exit code 1 if a change is breaking and the major version did not grow.

    Example: lakeshare contract diff <(git show main:contracts/orders.yaml) contracts/orders.yaml
    """
    from lakeshare_pipelines.contracts import load_contract
    from lakeshare_pipelines.contracts.difference import (
        compare_contracts,
        find_level,
        has_new_major_version,
        next_version,
        parse_version,
    )

    before, after = load_contract(old), load_contract(new)
    changes = compare_contracts(before, after)
    level, is_new_major = find_level(changes), has_new_major_version(before, after)
    needed = next_version(before, level)
    for change in changes:
        typer.echo(str(change))
    counts = ", ".join(
        f"{sum(change.level == kind for change in changes)} {kind}" for kind in ("breaking", "minor", "patch")
    )
    is_enough = parse_version(after) >= tuple(int(part) for part in needed.split("."))
    remark = "" if is_enough else f": give it version {needed} or higher"
    typer.echo(f"{counts} changes; version {before.version} → {after.version}{remark}")
    raise typer.Exit(1 if level == "breaking" and not is_new_major else 0)


def load_settings() -> "LakeSettings":
    from lakeshare_pipelines.settings import LakeSettings

    return LakeSettings()


def list_contracts() -> "tuple[SetContract, ...]":
    """Loads the contracts of the settings."""
    from lakeshare_pipelines.contracts import load_contracts

    return load_contracts(load_settings().contracts_dir)


def find_contract(set_name: str) -> "SetContract":
    contracts = {contract.name: contract for contract in list_contracts()}
    if set_name not in contracts:
        message = f"there is no set {set_name!r}, only {', '.join(contracts)}"
        raise typer.BadParameter(message, param_hint="SET")
    return contracts[set_name]
