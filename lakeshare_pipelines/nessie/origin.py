"""The first commit on main: a branch forked from Nessie's empty root has no ancestor to be merged over."""

from lakeshare_pipelines.nessie.calls import Calls, ref_path

AUTHOR = "lakeshare"


def begin_history(uri: str, publisher_token: str | None) -> None:
    """Give main its first commit; nothing happens when it has one."""
    calls = Calls(uri, publisher_token)
    log = calls.get(f"{ref_path('main')}/history", {"max-records": 1})
    if log["logEntries"]:
        return
    root = calls.get(ref_path("main"))["reference"]["hash"]
    # A commit needs an operation; this one changes nothing and expects nothing.
    unchanged = {"type": "UNCHANGED", "key": {"elements": [AUTHOR]}}
    body = {"commitMeta": {"message": "Begin", "authors": [AUTHOR]}, "operations": [unchanged]}
    calls.post(f"{ref_path('main@' + root)}/history/commit", body)
