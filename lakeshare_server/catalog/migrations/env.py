"""Alembic's entry: runs the migrations on the connection, and in the transaction, of `open_catalog`."""

from alembic import context

from lakeshare_server.catalog.models import Base

# DDL is transactional in SQLite because `database.py` sends BEGIN: a migration happens whole or not at all.
context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, transactional_ddl=True
)
with context.begin_transaction():
    context.run_migrations()
