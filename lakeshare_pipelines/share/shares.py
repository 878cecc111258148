"""The shares that contracts declare, applied to the server's catalog."""

from collections.abc import Sequence

from lakeshare_pipelines.contracts import SetContract, ShareEntry
from lakeshare_pipelines.errors import ContractError
from lakeshare_server.catalog import Catalog, DeclaredShare, ShareDiff, SharedTable, apply_shares


def apply(catalog: Catalog, contracts: Sequence[SetContract]) -> ShareDiff:
    """Make the catalog's declared shares what the contracts say; returns the difference.

    Raises:
        ContractError: two contracts share different tables under one name.
    """
    return apply_shares(catalog, declared_shares(contracts))


def declared_shares(contracts: Sequence[SetContract]) -> list[DeclaredShare]:
    """The shares of all contracts together, in order of name."""
    tables: dict[str, dict[tuple[str, str], SharedTable]] = {}
    for contract in contracts:
        for entry in contract.shares:
            share = tables.setdefault(entry.share, {})
            key = (entry.schema.lower(), entry.name.lower())
            if key in share and share[key].table != entry.table:
                raise ContractError(
                    contract.path,
                    "shares",
                    f"{entry.share}.{entry.schema}.{entry.name} stands for {share[key].table} and {entry.table}",
                    "Give one of them another name.",
                )
            share[key] = _shared(contract, entry)
    return [
        DeclaredShare(name=name, tables=tuple(of[key] for key in sorted(of)))
        for name, of in sorted(tables.items())
    ]


def _shared(contract: SetContract, entry: ShareEntry) -> SharedTable:
    view = contract.table(entry.table).view
    if view is None:
        return SharedTable(schema=entry.schema, name=entry.name, table=entry.table)
    rule = None if view.per_recipient is None else view.per_recipient.rule
    return SharedTable(schema=entry.schema, name=entry.name, table=entry.table, kind="VIEW", rule=rule)
