"""`lakeshare evidence`: the keys that sign publications, and publications that have no signed statement."""

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakeshare_server.cli.console import AsJson, open_state_catalog, print_json
from lakeshare_server.errors import BadRequest, NoEvidence, StoreError
from lakeshare_server.settings import StateSettings

if TYPE_CHECKING:
    from lakeshare_server.catalog import Catalog
    from lakeshare_server.tables.evidence import EvidenceWriter

evidence_app = typer.Typer(
    help="Signed statements of publications: keys, rotation, and what recipients verify.",
    no_args_is_help=True,
)
LakeTable = Annotated[str, typer.Argument(metavar="TABLE", help="The lake's table, like flights.departures.")]


@evidence_app.command("keys")
def list_keys(as_json: AsJson = False) -> None:
    """List the public keys with the times between which publications were signed with each."""
    from lakeshare_server.catalog import EvidenceStore

    keys = EvidenceStore(open_state_catalog()).list_keys()
    if as_json:
        print_json([vars(key) for key in keys])
        return
    typer.echo("KEY\tFROM\tUNTIL")
    for key in keys:
        until = "now" if key.retired_at is None else f"{key.retired_at:%Y-%m-%d %H:%MZ}"
        typer.echo(f"{key.key_id}\t{key.created_at:%Y-%m-%d %H:%MZ}\t{until}")


@evidence_app.command("export")
def export_key(
    key_id: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="Its id or the beginning of it; the current one by default."),
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Write it to this file.")] = None,
) -> None:
    """Print a public key as PEM, to send to recipients. Makes the first key if there is none.

    Send it by another way than the sharing server: recipients check the server with it.
    """
    pem = _find_public_key(key_id)
    if to is None:
        typer.echo(pem, nl=False)
        return
    try:
        to.write_text(pem)
    except OSError as error:
        raise BadRequest("--to", str(to), f"Give a file that can be written ({error.strerror}).") from error
    typer.echo(f"wrote {to}")


def _find_public_key(key_id: str | None) -> str:
    from lakeshare_server.catalog import EvidenceStore
    from lakeshare_server.tables.envelope import has_signing_key

    catalog = open_state_catalog()
    keys, settings = EvidenceStore(catalog).list_keys(), StateSettings()
    current = [key for key in keys if key.retired_at is None]
    if key_id is None and (settings.evidence_key_file or has_signing_key(settings) or not current):
        return _open_writer(catalog).key.public.pem
    # Another host signs.
    found = current if key_id is None else [key for key in keys if key.key_id.startswith(key_id)]
    if len(found) != 1:
        raise BadRequest("KEY", key_id, f"{len(found)} keys are meant; `lakeshare evidence keys` lists them.")
    return found[0].public_key


@evidence_app.command("new-key")
def make_key(
    to: Annotated[
        Path | None,
        typer.Option(
            help="Write the private key to this new file, for LAKESHARE_EVIDENCE_KEY_FILE of all hosts."
        ),
    ] = None,
) -> None:
    """Make a new key (rotation). Later publications are signed with it; statements of the old key stay valid.

    Send recipients the new public key before the next publication: `lakeshare evidence export`.
    """
    from lakeshare_server.catalog import EvidenceStore
    from lakeshare_server.tables.envelope import (
        KEY_FILE,
        has_signing_key,
        load_signing_key,
        write_signing_key,
    )

    settings, catalog = StateSettings(), open_state_catalog()
    if settings.evidence_key_file is not None and to is None:
        hint = "The key is given as a file: give --to NEW_FILE, then set the variable to it on all hosts."
        raise BadRequest("LAKESHARE_EVIDENCE_KEY_FILE", str(settings.evidence_key_file), hint)
    has_old = settings.evidence_key_file is not None or has_signing_key(settings)
    old = load_signing_key(settings).public if has_old else None
    path = to or settings.state_dir / KEY_FILE
    try:
        is_written = write_signing_key(path, if_absent=to is not None)
    except OSError as error:
        raise BadRequest("--to", str(path), f"Give a file that can be written ({error.strerror}).") from error
    if not is_written:
        raise BadRequest("--to", str(path), "The file exists: give a new one.")
    store = EvidenceStore(catalog)
    new = load_signing_key(settings.model_copy(update={"evidence_key_file": path})).public
    if old is not None:
        store.register(old.key_id, old.pem)
        store.retire(old.key_id)
    store.register(new.key_id, new.pem)
    typer.echo(f"key {new.key_id} in {path}")


@evidence_app.command("sign")
def sign(
    table: Annotated[
        str | None, typer.Argument(metavar="TABLE", help="One table of the lake; all tables by default.")
    ] = None,
    number: Annotated[
        int | None, typer.Option(min=0, help="Sign this publication again, also if it has a statement.")
    ] = None,
) -> None:
    """Sign the publications that have no statement, as those of before an upgrade, or one of them again.

    Files without a digest in an earlier statement are read as they are now. The statement has the time of signing.
    """
    from lakeshare_server.catalog import Ledger
    from lakeshare_server.tables.evidence import sign_unsigned

    catalog = open_state_catalog()
    writer, ledger = _open_writer(catalog), Ledger(catalog)
    if number is not None:
        publication = None if table is None else ledger.at(table, number)
        if publication is None:
            raise BadRequest("--number", number, "Give TABLE and a number of `lakeshare publications TABLE`.")
        writer.sign_again(publication)
        typer.echo(f"signed {publication.table} {publication.version}")
        return
    signed = failed = 0
    for publication, result in sign_unsigned(writer, ledger, None if table is None else [table]):
        if isinstance(result, StoreError):
            failed += 1
            typer.echo(f"not signed: {publication.table} {publication.version}: {result}", err=True)
        else:
            signed += 1
            typer.echo(f"signed {publication.table} {publication.version}")
    typer.echo(f"{signed} publications signed, {failed} not")
    raise typer.Exit(1 if failed else 0)


@evidence_app.command("show")
def show(
    table: LakeTable,
    number: Annotated[int | None, typer.Option(min=0, help="The number; the latest by default.")] = None,
) -> None:
    """Print the statement of a publication, with what recipients get as commitments only: details and inputs.

    With a salt and its text an auditor can check a commitment: SHA-256 of the byte 3, the salt and the text.
    """
    from lakeshare_server.catalog import EvidenceStore, Ledger

    catalog = open_state_catalog()
    publication = Ledger(catalog).latest(table) if number is None else Ledger(catalog).at(table, number)
    if publication is None:
        raise BadRequest("TABLE", table, "Give a table with publications: `lakeshare publications TABLE`.")
    evidence = EvidenceStore(catalog).find(table, publication.version)
    if evidence is None:
        name = f"publication {publication.version} of {table}"
        raise NoEvidence(name, "it has no statement", "Sign it: lakeshare evidence sign.")
    shown = _open_commitments(catalog, evidence)
    print_json(shown)


def _open_commitments(catalog: "Catalog", evidence: Any) -> dict[str, Any]:
    """The statement and the texts behind its commitments."""
    from lakeshare_server.tables.evidence import DETAILS, INPUTS, open_entries
    from lakeshare_server.tables.hash_tree import derive_salt

    statement = json.loads(base64.b64decode(json.loads(evidence.envelope)["payload"]))
    entries = open_entries(_open_writer(catalog).files, evidence.entries_digest)
    opened = {}
    if entries is not None:
        texts = {DETAILS: entries.header.details, INPUTS: entries.header.inputs}
        opened = {
            name: {"salt": derive_salt(evidence.salt, name).hex(), "text": text}
            for name, text in texts.items()
        }
    return {"keyId": evidence.key_id, "statement": statement, "opened": opened}


def _open_writer(catalog: "Catalog") -> "EvidenceWriter":
    from lakeshare_server.storage import Stores
    from lakeshare_server.tables.evidence import EvidenceWriter
    from lakeshare_server.tables.publications import PublicationFiles

    settings = StateSettings()
    return EvidenceWriter.open(PublicationFiles.open(Stores(settings), settings), catalog)
