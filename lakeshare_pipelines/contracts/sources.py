"""Sources other than landing, as contracts have them: what is refused before anything is read."""

from lakeshare_pipelines.contracts.document import Faults
from lakeshare_pipelines.contracts.model import JdbcSource, SetContract, Table

SECRETS = ("user", "password")


def check_jdbc(jdbc: JdbcSource, faults: Faults) -> None:
    """Checks the fields of a database against each other; `faults` is at the customProperties of the table."""

    def add(problem: str, hint: str) -> None:
        faults.add(problem, hint, near=("source",))

    if (jdbc.table is None) == (jdbc.query is None):
        given = "neither" if jdbc.table is None else "both"
        add(f"jdbc reads a table or a query, {given} is given", "Give one of table and query.")
    if (jdbc.partitions > 1) != (jdbc.partition_by is not None):
        hint = "Give both, partitionBy with a column of numbers or times, or neither."
        add("jdbc is read in partitions by partitionBy and partitions above 1", hint)
    if jdbc.lag_s and jdbc.incremental is None:
        add("jdbc has lagS and reads all rows", "Remove lagS, or name the incremental column.")
    names = [part.partition("=")[0].lower() for part in jdbc.url.partition("?")[2].split("&")]
    if found := [name for name in SECRETS if name in names]:
        hint = "Remove it; give the names of environment variables as user and password beside url."
        add(f"jdbc.url has the {found[0]}", hint)
    if "@" in jdbc.url:
        hint = "Remove them; give the names of environment variables as user and password beside url."
        add("jdbc.url has user or password before @", hint)


def check_sources(contract: SetContract, faults: Faults) -> None:
    """Checks what a set with sources can be; `faults` is at the document."""
    properties = faults.at("customProperties")
    if contract.schedule is not None and not contract.has_sources and properties.has_none():
        hint = "Remove it: deliveries and inputs start the set."
        properties.add("schedule is for sets with sources other than landing", hint, near=("schedule",))
    if not contract.has_sources:
        return
    if contract.takes_deliveries:
        landed = ", ".join(table.short_name for table in contract.tables if table.source is not None)
        hint = f"Put {landed} into a set of their own, or copy the other tables to landing."
        faults.at("schema").add(f"set {contract.name} has files in landing and other sources", hint)
    if contract.partitioning.kind != "none" and properties.has_none():
        hint = "Give partitioning: none; a table with write: merge or append keeps its earlier rows."
        properties.add("a set with sources other than landing is not daily", hint, near=("partitioning",))
    for index, table in enumerate(contract.tables):
        if table.reads is not None:
            _check_write(table, faults.at("schema", index, "customProperties"))


def _check_write(table: Table, faults: Faults) -> None:
    entry = table.reads
    if entry is None:
        return
    if entry.jdbc is not None and entry.jdbc.incremental is not None and not table.write.is_incremental:
        problem = f"{table.short_name} is read incrementally and replaced by each run"
        faults.add(problem, "Give write: merge or append, or remove incremental.", near=("source",))
    if table.write.mode == "append" and not entry.has_positions:
        hint = "Give write: replace or merge; a database can also name its incremental column."
        problem = f"each run would append all rows of the source of {table.short_name} again"
        faults.add(problem, hint, near=("write",))
