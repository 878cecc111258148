"""Contracts of sets that read other sources than landing, and a database with tables for them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from lakeshare_pipelines.contracts import SetContract, load_contract

CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: {name}
name: {name}
version: 1.0.0
status: active
servers:
  - {{server: lake, type: local, path: warehouse, format: {format}}}
schema:
{tables}
customProperties: {properties}
"""
TABLE = """\
  - name: {name}
    customProperties: {properties}
    properties: {columns}
"""
ORDERS = (
    {"name": "id", "logicalType": "integer", "primaryKey": True, "primaryKeyPosition": 1},
    {"name": "amount", "logicalType": "number", "physicalType": "decimal(12,2)", "required": True},
    {"name": "is_deleted", "logicalType": "boolean"},
    {"name": "updated_at", "logicalType": "timestamp"},
)
EVENTS = (
    {"name": "number", "logicalType": "integer", "physicalType": "bigint"},
    {"name": "note", "logicalType": "string", "required": True},
)


def a_table(name: str, source: object, columns: Sequence[object] = EVENTS, write: object = "replace") -> str:
    properties = [{"property": "source", "value": source}, {"property": "write", "value": write}]
    return TABLE.format(name=name, properties=json.dumps(properties), columns=json.dumps(columns))


def a_source_set(
    folder: Path, name: str, *tables: str, table_format: str = "delta", **properties: object
) -> SetContract:
    """A set of tables with sources, by `a_table`."""
    listed = [{"property": key, "value": value} for key, value in properties.items()]
    text = CONTRACT.format(
        name=name, format=table_format, tables="".join(tables), properties=json.dumps(listed)
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return load_contract(path)


class Shop:
    """A database with the tables `orders`, whose rows change, and `events`, which only get more."""

    def __init__(self, url: str) -> None:
        self.url = url.replace("postgresql+psycopg", "postgresql")
        self.execute(
            "create table orders (id int primary key, amount numeric(12,2), is_deleted boolean default false, "
            "updated_at timestamptz)"
        )
        self.execute("create table events (number bigserial primary key, note text)")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def jdbc(self, **fields: object) -> Mapping[str, Any]:
        place = self.url.partition("@")[2]
        account = {"user": "SHOP_USER", "password": "SHOP_PASSWORD"}
        return {"jdbc": {"url": f"jdbc:postgresql://{place}", **account, **fields}}

    def order(self, number: int, amount: str, minute: int, *, deleted: bool = False) -> None:
        """Insert or update an order, at a minute of a day."""
        values = f"({number}, {amount}, {deleted}, timestamptz '2026-01-01 00:{minute:02}:00.123456+00')"
        self.execute(
            f"insert into orders values {values} on conflict (id) do update set amount = excluded.amount, "
            "is_deleted = excluded.is_deleted, updated_at = excluded.updated_at"
        )

    def note(self, *notes: str) -> None:
        for note in notes:
            self.execute(f"insert into events (note) values ('{note}')")
