"""The reference of SQL is true: its statements run in the order they stand, and it shows each kind of statement."""

import re
from pathlib import Path

from lakeshare_server.sql import statements as said
from lakeshare_server.sql.grammar import parse
from lakeshare_server.sql.show import VIEWS
from tests.builders.sql_sessions import a_lake, a_session

PAGE = (Path(__file__).parents[2] / "docs/reference/sql.md").read_text()
SCRIPTS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_statements_of_the_reference_run_as_they_stand(tmp_path):
    provider = a_lake(tmp_path)
    session = a_session(provider)
    for script in SCRIPTS:
        list(session.run(script, "docs/reference/sql.md"))
    provider.catalog.close()


def test_the_reference_shows_each_kind_of_statement():
    shown = {type(placed.statement) for script in SCRIPTS for placed in parse(script)}
    every = {*said.ChangeStatement.__subclasses__(), *said.ReadStatement.__subclasses__(), said.SetRecipient}
    reads_stores = {said.Follow, said.Unfollow}
    assert every - shown == {said.Publish, said.ShowSharesInProvider, said.DescribeGroup, *reads_stores}
    assert ("FOLLOW 's3://" in PAGE, "UNFOLLOW sales.orders" in PAGE) == (True, True)
    for refused in ("PUBLISH TABLE … FROM BRANCH …", "SHOW SHARES IN PROVIDER …", "USING ID …"):
        assert refused in PAGE


def test_the_reference_names_each_view():
    assert [view for view in VIEWS if f"`{view}`" not in PAGE] == []
