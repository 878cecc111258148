"""A YAML text as plain values, without YAML's traps, and the line of each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

# The largest file that anybody wrote has a million values; a few nested aliases unfold to any number.
MOST_VALUES = 5_000_000
# libyaml's own stack ends, and the process with it, somewhere above 10,000.
DEEPEST = 50
TEXT, MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class YamlFault(Exception):
    """The text cannot be used; `line` is where, counted from 1."""

    def __init__(self, line: int, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.line, self.problem, self.hint = line, problem, hint


class _Loader(yaml.CSafeLoader):
    """libyaml's safe loader, ten times as fast as the one in Python, and bounded in depth."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        self.tags: dict[str, str] = {}

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        # Called in front of each node, and the only part of the composer that is Python's.
        self.depth += 1
        if self.depth > DEEPEST:
            line = 1 if current_node is None else _line(current_node)
            raise YamlFault(line, "it is nested deeper than any file of ours", "Correct the YAML there.")

    def ascend_resolver(self) -> None:
        self.depth -= 1

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode or not implicit[0]:
            return self._matched(kind, value, implicit)
        # Files say the same words over and over; to match one against every pattern takes longer than to read it.
        if value not in self.tags:
            self.tags[value] = self._matched(kind, value, implicit)
        return self.tags[value]

    def _matched(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]  # has no types
        return tag


@dataclass(frozen=True)
class Parsed:
    """What a text says, and where it says it."""

    values: Any
    root: yaml.Node | None

    def line(self, where: Sequence[str | int]) -> int:
        """The line of what stands at a place, or of the innermost part around it."""
        node, line = self.root, 1
        for step in where:
            found = None if node is None else _child(node, step)
            if found is None:
                break
            line, node = found
        return line


def parse(text: str) -> Parsed:
    """The values of a text, and their lines.

    Raises:
        YamlFault: it is not YAML, gives a key twice, or unfolds to more than anybody wrote.
    """
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                _require_sound(root)
            values = None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or str(error).splitlines()[0]
        raise YamlFault(1 if mark is None else mark.line + 1, problem, "Correct the YAML there.") from error
    except (yaml.YAMLError, ValueError) as error:
        # A character that YAML forbids, or a date like 2024-02-31.
        raise YamlFault(1, str(error).splitlines()[0], "Correct the YAML there.") from error
    return Parsed(values, root)


def _require_sound(root: yaml.Node) -> None:
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in open_:
            raise YamlFault(_line(node), "it contains itself", "Write it out without the alias.")
        if id(node) not in sizes:
            open_.add(id(node))
            if isinstance(node, yaml.MappingNode):
                _require_single_keys(node)
                inner = [part for pair in node.value for part in pair]
            else:
                inner = list(node.value)
            sizes[id(node)] = 1 + sum(map(size, inner))
            open_.discard(id(node))
        return sizes[id(node)]

    unfolded = size(root)
    if unfolded > MOST_VALUES:
        hint = f"At most {MOST_VALUES:,} are read from one file; write fewer aliases, or several files."
        raise YamlFault(_line(root), f"it unfolds to {unfolded:,} values", hint)


def _require_single_keys(node: yaml.MappingNode) -> None:
    seen: dict[str, int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise YamlFault(_line(key), "a key is no text", "Use names as keys.")
        if key.tag not in (TEXT, MERGE):
            raise YamlFault(_line(key), f"the key {key.value!r} is no text to YAML", "Write it in quotes.")
        if key.value in seen:
            problem = f"the key {key.value!r} is given twice, first in line {seen[key.value]}"
            raise YamlFault(_line(key), problem, "Keep one of them.")
        seen[key.value] = _line(key)


def _child(node: yaml.Node, step: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return _line(key), value
    elif isinstance(node, yaml.SequenceNode):
        if isinstance(step, int):
            return (_line(node.value[step]), node.value[step]) if step < len(node.value) else None
        # A list of names stands for a mapping without values.
        for item in node.value:
            if item.value == step:
                return _line(item), item
    return None


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line + 1
    return line
