"""The policies written into a folder, with a page that says what each is for and how it gets to its place."""

import json
from pathlib import Path

from lakeshare_pipelines.backup.declared import Backup
from lakeshare_pipelines.backup.policies.documents import PolicyFile
from lakeshare_pipelines.errors import BackupError

PAGE = "README.md"
INDEX = "index.json"


def write_policies(backup: Backup, files: tuple[PolicyFile, ...], folder: Path) -> list[Path]:
    """Write every document, the index of them, and the page; files of other names in the folder stay.

    Raises:
        BackupError: the folder cannot be written.
    """
    contents = {one.name: as_json(one) for one in files}
    index = [
        {"name": one.name, "kind": one.kind, "account": one.account, "subject": one.subject} for one in files
    ]
    contents[INDEX] = json.dumps(index, indent=2) + "\n"
    contents[PAGE] = page(backup, files)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (folder / name).write_text(content)
    except OSError as error:
        raise BackupError(
            str(folder), f"it cannot be written: {error.strerror}", "Give another --to."
        ) from error
    return [folder / name for name in contents]


def as_json(one: PolicyFile) -> str:
    """A document as its file has it."""
    return json.dumps(one.document, indent=2) + "\n"


def page(backup: Backup, files: tuple[PolicyFile, ...]) -> str:
    """What the documents are for, account by account, as Markdown."""
    lines = [f"# Policies of backup {backup.name}", ""]
    lines += [f"From {backup.source} (account {backup.source.account})", ""]
    lines += [f"to {backup.target} (account {backup.target.account}).", ""]
    for account in dict.fromkeys(one.account for one in files):
        lines += [f"## Account {account}", ""]
        for one in files:
            if one.account == account:
                lines += [f"### {one.name}", "", f"{one.purpose[0].upper()}{one.purpose[1:]}.", ""]
                lines += ["```", one.apply, "```", "", *_statements(one), ""]
    lines += ["After each step `lakeshare doctor` says what is still missing.", ""]
    return "\n".join(lines)


def _statements(one: PolicyFile) -> list[str]:
    rows = []
    for statement in one.document["Statement"]:
        actions = statement.get("Action", [])
        told = ", ".join([actions] if isinstance(actions, str) else actions)
        unless = " (but for who is named in it)" if "ArnNotLike" in statement.get("Condition", {}) else ""
        rows.append(f"- {statement['Sid']}: {statement['Effect'].lower()} {told}{unless}")
    return rows
