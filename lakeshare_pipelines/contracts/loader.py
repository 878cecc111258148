"""Contracts from their files: one file, or all of a folder."""

from pathlib import Path

from pydantic import ValidationError

from lakeshare_pipelines.contracts.build import build_set
from lakeshare_pipelines.contracts.checks import check_set, share_key, snowflake_key
from lakeshare_pipelines.contracts.document import Document
from lakeshare_pipelines.contracts.faults import Faults
from lakeshare_pipelines.contracts.model import SetContract
from lakeshare_pipelines.contracts.yaml_file import digest_of, read_yaml
from lakeshare_pipelines.errors import ContractError

PACKAGED = Path(__file__).parent


def load_contract(path: Path) -> SetContract:
    """The contract in a file.

    Raises:
        ContractError: for the first thing wrong with it; its `also` holds all the others.
    """
    values = read_yaml(path)
    faults = Faults(path)
    try:
        document = Document.model_validate(values)
    except ValidationError as error:
        faults.add_invalid(error)
        faults.require_none()
        raise
    contract = build_set(document, digest_of(values), path, faults)
    contract = check_set(contract, faults)
    faults.require_none()
    return contract


def load_contracts(folder: Path | None = None) -> tuple[SetContract, ...]:
    """The contracts of a folder, by file name; without a folder, the sets that ship with the package.

    Raises:
        ContractError: a file is wrong, the folder has none, or two files claim the same name.
    """
    folder = PACKAGED if folder is None else folder
    paths = sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")], key=lambda path: path.name)
    if not paths:
        hint = "Put contract YAML files there, or set LAKESHARE_CONTRACTS_DIR to where they are."
        raise ContractError(
            folder, "the folder", "holds no contract" if folder.is_dir() else "does not exist", hint
        )
    contracts = tuple(load_contract(path) for path in paths)
    _refuse_shared_names(contracts)
    return contracts


def _refuse_shared_names(contracts: tuple[SetContract, ...]) -> None:
    taken: dict[tuple[str, ...], SetContract] = {}
    for contract in contracts:
        claims = [("set", contract.name.lower())]
        claims += [("table", table.name.lower()) for table in contract.tables]
        claims += [("share entry", ".".join(share_key(entry))) for entry in contract.shares]
        claims += [("table of Snowflake", ".".join(snowflake_key(entry))) for entry in contract.snowflake]
        for kind, name in claims:
            other = taken.setdefault((kind, name), contract)
            if other is not contract:
                raise ContractError(
                    contract.path,
                    "name",
                    f"the {kind} {name!r} is {other.path.name}'s already",
                    "Rename one of them.",
                )
