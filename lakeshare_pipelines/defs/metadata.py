"""What the UI shows: Dagster's own metadata keys from contracts, staged sets, verdicts and publications."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from lakeshare_pipelines.contracts import Column, SetContract, Table
from lakeshare_pipelines.wap.staged import Staged
from lakeshare_pipelines.wap.verdicts import Verdict
from lakeshare_server.catalog import Catalog, Ledger, Publication

PLOTTED = 60
UNCHANGED_TEXT = "this delivery is in force already; no new number was given"


def column_metadata(contract: SetContract, table: Table) -> Mapping[str, Any]:
    """Table name, column schema and column lineage, known before any run."""
    return {
        "dagster/table_name": table.name,
        "dagster/column_schema": _column_schema(table),
        "dagster/column_lineage": dg.TableColumnLineage(
            {column.name: _sources(contract, table, column) for column in table.columns}
        ),
    }


def staged_metadata(staged: Staged) -> Mapping[str, Any]:
    """Where a run's tables wait, and how many rows."""
    return {
        "lakeshare/staged_at": staged.ref,
        "lakeshare/partition": staged.partition,
        "lakeshare/head": staged.head,
        "lakeshare/rows": {table.table: table.rows for table in staged.tables},
        "lakeshare/rejected": {table.table: table.rejected for table in staged.tables},
        "lakeshare/rewritten": {table.table: list(table.rewritten) for table in staged.tables},
    }


def check_metadata(verdict: Verdict, staged: Staged) -> Mapping[str, Any]:
    """What a rule saw, up to twenty masked rows that broke it, and where the staged set is kept."""
    shown: dict[str, Any] = {"lakeshare/staged_at": staged.ref, "lakeshare/head": staged.head}
    for name, value in verdict.observed.items():
        shown[f"observed/{name}"] = _shown(value)
    if verdict.samples:
        shown["lakeshare/samples"] = dg.MetadataValue.md(markdown_table(verdict.samples))
    if not verdict.passed:
        shown["lakeshare/next"] = f"lakeshare wap show {staged.ref}"
    return shown


def _shown(value: Any) -> Any:
    """Numbers and texts as they are, rows of one kind as a table, everything else as JSON."""
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, list) and value and all(isinstance(row, Mapping) for row in value):
        return dg.MetadataValue.md(markdown_table(value))
    return dg.MetadataValue.json(value)


def publication_metadata(catalog: Catalog, publication: Publication, run_id: str) -> Mapping[str, Any]:
    """Number, counts, pins, and the row count over the last publications as a small picture."""
    history = Ledger(catalog).history(publication.table, limit=PLOTTED)
    shown: dict[str, Any] = {
        "dagster/row_count": publication.rows,
        "dagster/uri": publication.location,
        "lakeshare/publication": publication.version,
        "lakeshare/files": publication.files,
        "lakeshare/size_bytes": publication.size_bytes,
        "lakeshare/index": publication.index_digest,
        "lakeshare/published_by": publication.run_id,
        "lakeshare/rows_over_time": dg.MetadataValue.md(
            rows_plot([entry.rows for entry in reversed(history)])
        ),
    }
    if publication.run_id != run_id:
        shown["lakeshare/unchanged"] = UNCHANGED_TEXT
    if publication.nessie_hash is not None:
        shown["nessie/hash"] = publication.nessie_hash
        shown["iceberg/snapshot_id"] = str(publication.snapshot_id)
    if publication.delta_version is not None:
        shown["delta/version"] = publication.delta_version
    return shown


def rows_plot(rows: Sequence[int], width: int = 360, height: int = 60) -> str:
    """Row counts, oldest first, as bars in a Markdown image."""
    top = max([*rows, 1])
    step = width / max(len(rows), 1)
    bars = "".join(
        f'<rect x="{at * step:.1f}" y="{height - height * count / top:.1f}" '
        f'width="{step * 0.8:.1f}" height="{height * count / top:.1f}"/>'
        for at, count in enumerate(rows)
    )
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" fill="#4f6fad">{bars}</svg>'
    picture = base64.b64encode(svg.encode()).decode()
    return f"![{len(rows)} publications, at most {top} rows](data:image/svg+xml;base64,{picture})"


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of equal keys as a Markdown table."""
    names = list(rows[0])
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    lines += [" | ".join(str(row.get(name)).replace("|", "\\|") for name in names) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _sources(contract: SetContract, table: Table, column: Column) -> list[dg.TableColumnDep]:
    if table.source is not None:
        source = column.delivered_as
        return [] if source is None else [dg.TableColumnDep(dg.AssetKey(["landing", contract.name]), source)]
    named = (name.rsplit(".", 1) for name in column.lineage)
    return [
        dg.TableColumnDep(dg.AssetKey(contract.table(of).name.split(".")), source) for of, source in named
    ]


def _column_schema(table: Table) -> dg.TableSchema:
    key = table.primary_key
    is_composite = len(key) > 1
    constraints = dg.TableConstraints(other=[f"PRIMARY KEY ({', '.join(key)})"]) if is_composite else None
    return dg.TableSchema([_column(table, column) for column in table.columns], constraints)


def _column(table: Table, column: Column) -> dg.TableColumn:
    return dg.TableColumn(
        column.name,
        column.type,
        description=column.description,
        constraints=dg.TableColumnConstraints(
            nullable=not column.required, unique=column.unique or table.primary_key == (column.name,)
        ),
        tags={"pii": ""} if column.pii else {},
    )
