"""Temporary credentials for a table's directory."""

import time

from lakeshare_conformance.case import COUNT, MUST, NAME, OBJECT, expect, expect_fields, on_tables
from lakeshare_conformance.ground import Table, at

PATH = "/temporary-table-credentials"
KINDS = {
    "awsTempCredentials": ("accessKeyId", "secretAccessKey", "sessionToken"),
    "azureUserDelegationSas": ("sasToken",),
    "gcpOauthToken": ("oauthToken",),
}


@on_tables(MUST, "1.10", "1.4")
def credentials_are_given_as_documented_or_refused(table: Table) -> None:
    """A table listed with access mode dir gives credentials of one store; any other refuses by 4xx, in JSON."""
    answer = table.ask("POST", PATH, body={})
    if answer.status != 200:
        expect(
            not _is_offered(table), answer.asked, "credentials, since accessModes lists dir", answer.summary
        )
        answer.refusal()
        return
    expect(_is_offered(table), answer.asked, "a refusal, since accessModes does not list dir", "credentials")
    given = answer.object().get("credentials")
    where = f"{answer.asked}, credentials"
    if not isinstance(given, dict):
        given = {}
    expect_fields(where, given, {"location": NAME, "expirationTime": COUNT}, {})
    kinds = [kind for kind in KINDS if given.get(kind) is not None]
    expect(len(kinds) == 1, where, f"one of {', '.join(KINDS)}", kinds)
    expect_fields(where, given, {kinds[0]: OBJECT}, {})
    # Secrets are not shown, whatever is wrong with them.
    named = {
        name: "…" if isinstance(value, str) and value else None for name, value in given[kinds[0]].items()
    }
    expect_fields(where, named, dict.fromkeys(KINDS[kinds[0]], NAME), {})
    left_s = given["expirationTime"] / 1000 - time.time()
    expect(left_s > 0, where, "an expirationTime to come, in milliseconds", given["expirationTime"])
    lines = [line for line in answer.body.split(b"\n") if line.strip()]
    expect(len(lines) == 1, answer.asked, "one line", len(lines))


@on_tables(MUST, "1.10", "0.19")
def credentials_for_other_places_are_refused(table: Table) -> None:
    """A location outside of the table, and a body that is no JSON object, are 4xx."""
    for body in (
        {"location": "s3://lakeshare-conformance-elsewhere/x"},
        {"location": "/"},
        {"location": 1},
        b"{",
        b"[]",
    ):
        table.ask("POST", PATH, body=body).refusal()


def _is_offered(table: Table) -> bool:
    share, schema, name = table.names
    for item in table.server.items(f"{at(share, schema)}/tables"):
        if str(item.get("name")).lower() == name.lower():
            return "dir" in (item.get("accessModes") or [])
    return False
