"""The reference of SQL is true: its statements run in the order they stand, and it shows each kind of statement."""

import re
from itertools import product
from pathlib import Path
from typing import get_args

from lakeshare_server.sql import show
from lakeshare_server.sql import statements as said
from lakeshare_server.sql.grammar import parse
from lakeshare_server.sql.show import VIEWS
from tests.builders.sql_sessions import a_lake, a_session

PAGE = (Path(__file__).parents[4] / "docs/reference/sql.md").read_text()
SCRIPTS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_statements_of_the_reference_run_as_they_stand(tmp_path):
    provider = a_lake(tmp_path)
    session = a_session(provider)
    for script in SCRIPTS:
        list(session.run(script, "docs/reference/sql.md"))
    provider.catalog.close()


def test_the_reference_shows_each_kind_of_statement():
    parsed = [placed.statement for script in SCRIPTS for placed in parse(script)]
    shown = {type(statement) for statement in parsed}
    every = {*said.ChangeStatement.__subclasses__(), *show.ReadStatement.__subclasses__(), said.SetRecipient}
    reads_stores = {said.Follow, said.Unfollow}
    assert every - shown == {said.Publish, show.ShowSharesInProvider, *reads_stores}
    of_kinds = said.Alter, said.Drop, show.Show, show.Describe
    kinds = {(type(statement), statement.kind) for statement in parsed if isinstance(statement, of_kinds)}
    assert {*product(of_kinds, get_args(said.ObjectKind))} - kinds == {(show.Describe, "GROUP")}
    created = {statement.kind for statement in parsed if isinstance(statement, said.Create)}
    assert created == {"SHARE", "GROUP"}
    assert ("FOLLOW 's3://" in PAGE, "UNFOLLOW sales.orders" in PAGE) == (True, True)
    for refused in ("PUBLISH TABLE … FROM BRANCH …", "SHOW SHARES IN PROVIDER …", "USING ID …"):
        assert refused in PAGE


def test_the_reference_names_each_view():
    assert [view for view in VIEWS if f"`{view}`" not in PAGE] == []
