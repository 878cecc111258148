"""A contract file as plain values: YAML without its traps, and the digest of what it says."""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from lakeshare_pipelines.errors import ContractError


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a contract file.

    Raises:
        ContractError: no such file, not UTF-8, not YAML, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ContractError(
            path, "the file", "does not exist", "Give the path of a contract's YAML file."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(
            path, "the file", f"cannot be read: {error}", "It must be a readable UTF-8 text."
        ) from error
    try:
        document = yaml.load(text, _Loader)  # noqa: S506  # a SafeLoader, only stricter
    except yaml.YAMLError as error:
        raise ContractError(path, _place(error), _problem(error), "Correct the YAML there.") from error
    if not isinstance(document, dict):
        raise ContractError(
            path,
            "the file",
            "is not a mapping",
            "A contract begins with apiVersion, kind, id, name, version.",
        )
    return document


def digest_of(document: dict[str, Any]) -> str:
    """SHA-256 of what the file says; comments, order of keys and layout do not count."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"


def _problem(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or str(error).splitlines()[0]
