"""Signed evidence of publications for recipients, and the provider's public keys."""

from fastapi import APIRouter, Response

from lakeshare_server.access.table_access import TableView
from lakeshare_server.catalog import Evidence, EvidenceStore, FollowedTables
from lakeshare_server.errors import NoEvidence
from lakeshare_server.protocol.requests import optional_integer
from lakeshare_server.routes.context import (
    READ_METHODS,
    RecipientRequestDep,
    TableRequest,
    TableRequestDep,
    in_table_pool,
)
from lakeshare_server.routes.responses import LinesResponse, json_response
from lakeshare_server.routes.tables import VERSION_HEADER
from lakeshare_server.routes.tables import router as tables_router
from lakeshare_server.tables.evidence import EntryFile, open_entries, render_evidence
from lakeshare_server.versions import Version

router = APIRouter()
SIGN_AGAIN = "Ask your provider to sign it (lakeshare evidence sign)."


@router.api_route("/evidence-keys", methods=READ_METHODS, name="list_evidence_keys")
def list_evidence_keys(request: RecipientRequestDep) -> Response:
    """The public keys; recipients must have the ones that they trust from the provider itself."""
    keys = [
        {
            "keyId": key.key_id,
            "publicKey": key.public_key,
            "createdAt": key.created_at.isoformat(),
            "retiredAt": key.retired_at and key.retired_at.isoformat(),
        }
        for key in EvidenceStore(request.app_state.catalog).list_keys()
    ]
    return json_response({"keys": keys})


@router.api_route(f"{tables_router.prefix}/evidence", methods=READ_METHODS, name="table_evidence")
@in_table_pool
def table_evidence(request: TableRequestDep) -> Response:
    view = request.view
    number = optional_integer(request.http_request.query_params, "version", label="table version")
    version = view.latest() if number is None else view.at_version(number)
    request.audit_record.note_version(version)
    evidence, entries = _find(request, view, version)
    own = view.index(version) if view.is_restricted else None
    lines = render_evidence(evidence, entries, own)
    # The first line is made here: the tree of a large table takes seconds.
    first = next(lines)
    return LinesResponse(first, lines, {VERSION_HEADER: str(version.number)})


def _find(request: TableRequest, view: TableView, version: Version) -> tuple[Evidence, EntryFile]:
    name = f"Version {version.number} of {view.entry.path}"
    app_state, table = request.app_state, view.entry.table
    evidence = EvidenceStore(app_state.catalog).find(table, version.number)
    if evidence is None:
        if FollowedTables(app_state.catalog).get(table) is not None:
            why = "the table is written by others and followed, so no audit has seen it"
            raise NoEvidence(name, why, "Ask your provider for a table that its pipelines publish.")
        raise NoEvidence(name, "it was published without a statement", SIGN_AGAIN)
    entries = open_entries(app_state.versions.files, evidence.entries_digest)
    if entries is None:
        raise NoEvidence(name, "the list of its files is lost", SIGN_AGAIN)
    return evidence, entries
