"""A contract as a person reads it in a terminal."""

from collections.abc import Iterator

from lakeshare_pipelines.contracts.model import Column, Drift, SetContract, Table, View


def describe(contract: SetContract) -> str:
    """The set, its tables with columns and rules, and what is shared, as plain text."""
    return "\n".join(_lines(contract)) + "\n"


def _lines(contract: SetContract) -> Iterator[str]:
    yield f"set {contract.name} {contract.version}: {contract.description}"
    yield f"  file     {contract.path}"
    yield f"  digest   {contract.digest}"
    yield f"  owners   {', '.join(contract.owners) or 'nobody'}"
    days = (
        f"daily, from {contract.first_partition}"
        if contract.partitioning == "daily"
        else "one partition, all"
    )
    yield f"  arrives  {days}"
    for table in contract.tables:
        yield ""
        yield from _table_lines(table)
    yield ""
    for entry in contract.shares:
        yield f"shared as {entry.share}.{entry.schema}.{entry.name}: {entry.table}"
    for follower in contract.snowflake:
        yield f"in Snowflake as {follower.database}.{follower.schema}.{follower.name}: {follower.table}"


def _table_lines(table: Table) -> Iterator[str]:
    origin = f"files {table.source}*" if table.source else f"derived from {', '.join(table.depends_on)}"
    if table.view is not None:
        origin = f"view of {table.view.of}"
    by = ", ".join(c if t == "identity" else f"{t}({c})" for c, t in table.partition_by)
    yield f"table {table.name} ({table.format}, {origin}{', partitioned by ' + by if by else ''})"
    if table.description:
        yield f"  {table.description}"
    yield from _view_lines(table.view)
    width = max(len(column.name) for column in table.columns)
    for column in table.columns:
        yield f"  {column.name:{width}}  {column.type:10} {_column_words(column)}".rstrip()
    if table.rules or table.references:
        yield "  rules"
    for rule in table.rules:
        arguments = ", ".join(
            f"{k}={v!r}" for k, v in rule.kwargs.items() if k not in ("column", "column_list")
        )
        shown = f" ({arguments})" if arguments else ""
        yield f"    {rule.severity:7} on the {rule.scope}: {rule.name}{shown}"
    for reference in table.references:
        target = f"{reference.to_table}({', '.join(reference.to_columns)})"
        yield f"    {reference.severity:7} on the table: {', '.join(reference.columns)} exists in {target}"
    if table.serveable_to.clients:
        yield f"  {_promise_words(table)}"
    yield f"  at most {table.max_quarantined_fraction:.1%} of rows in quarantine{_drift_words(table.drift)}"


def _view_lines(view: View | None) -> Iterator[str]:
    if view is not None and view.where is not None:
        yield f"  rows where {' '.join(view.where.split())}"
    if view is None or view.per_recipient is None:
        return
    per = view.per_recipient
    made = f" = {' '.join(per.value.split())}" if per.value else ""
    yield f"  per recipient by {per.column}{made}" + (f": {per.rule}" if per.rule else "")


def _column_words(column: Column) -> str:
    words = [
        "primary key" if column.primary_key else "required" if column.required else "",
        "unique" if column.unique else "",
        "pii" if column.pii else "",
        f"from {column.source}" if column.source else f"= {column.expression}" if column.expression else "",
        column.description,
    ]
    return "; ".join(word for word in words if word)


def _promise_words(table: Table) -> str:
    promise = table.serveable_to
    is_rewritten = promise.rewrite and table.format == "iceberg"
    rewritten = ", rewritten for them where needed" if is_rewritten else ""
    return f"can be read by {', '.join(promise.clients)}{rewritten} ({promise.severity})"


def _drift_words(drift: Drift) -> str:
    words = ""
    if drift.max_shrink_fraction is not None:
        words += f"; may shrink by {drift.max_shrink_fraction:.0%} in a run ({drift.severity})"
    if drift.max_growth_fraction is not None:
        words += f"; may grow by {drift.max_growth_fraction:.0%} in a run ({drift.severity})"
    return words
