"""Read YAML mappings with the line of each name, for messages that start with `file:line:`.

Values are read by the type that the caller expects, not by YAML's implicit types: `[no]` is the column "no", and `0.50`
is the string "0.50".
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import yaml

from lakehouse.errors import UserError, nearest

# The C loader is ten times faster; PyYAML's wheels contain it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL_TAG = "tag:yaml.org,2002:null"
_KINDS: dict[type, str] = {yaml.SequenceNode: "a list", yaml.MappingNode: "a mapping"}
_MAX_DEPTH = 64
#: The spec of a wide table contains some thousand values. Nested aliases may expand to a billion values.
_MAX_VALUES = 200_000
# Each level of nesting contains at least one of these characters.
_DEEPER = ("[", "{", "- ", "? ", "\n ", "-\n", "-\t")
_WHOLE = re.compile(r"[0-9]{1,18}")
_SHOWN = 40
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping of a YAML file. Names with an empty value count as absent."""

    source: str
    title: str
    line: int
    nodes: dict[str, yaml.Node] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    def error(self, message: str, name: str | None = None) -> UserError:
        """Return the error `file:line: message` for the line of `name`, or of the section."""
        line = self.lines.get(name or "", self.line)
        return UserError(f"{self.source}:{line}: {message}", file=self.source, line=line, name=name)

    def only(self, names: Collection[str]) -> None:
        """Raise UserError for the first name that is not in `names`, with the closest valid name."""
        for name in self.lines:
            if name not in names:
                raise self.error(
                    f"unknown name {name!r} in {self.title}.{nearest(name, names)} Known: {', '.join(names)}.", name
                )

    def text(self, name: str, default: str = "") -> str:
        """Return a scalar as a string."""
        node = self.nodes.get(name)
        return default if node is None else self._scalar(node, name)

    def required(self, name: str) -> str:
        """Return a scalar as a string; raise UserError if there is none."""
        if not self.text(name).strip():
            raise self.error(f"{self.title} needs {name!r}.", name)
        return self.text(name).strip()

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list of strings. A scalar is split at commas."""
        node = self.nodes.get(name)
        if node is None:
            return ()
        if isinstance(node, yaml.SequenceNode):
            return tuple(self._scalar(item, name).strip() for item in node.value)
        return tuple(part.strip() for part in self._scalar(node, name).split(",") if part.strip())

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings. A scalar is a list of one string and is not split at commas."""
        node = self.nodes.get(name)
        if node is None:
            return ()
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return tuple(self._scalar(item, name) for item in items)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return the choice that equals the scalar, ignoring case."""
        text = self.text(name, default)
        for allowed in choices:
            if allowed.lower() == text.strip().lower():
                return allowed
        raise self.error(f"{name}: {text!r} is not one of {', '.join(choices)}.{nearest(text, choices)}", name)

    def integer(self, name: str, default: int) -> int:
        """Return a whole number that is not negative."""
        text = self.text(name, str(default)).strip().replace("_", "")
        if not _WHOLE.fullmatch(text):
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            raise self.error(f"{name}: {shown!r} is not a whole number of 0 or more, with at most 18 digits.", name)
        return int(text)

    def boolean(self, name: str, default: bool) -> bool:
        """Return true or false."""
        return self.choice(name, ("true", "false"), str(default)) == "true"

    def seconds(self, name: str, default: int) -> int:
        """Return a duration such as `90s`, `5m`, `2h` or `1d` in seconds; a bare number is seconds."""
        text = self.text(name, str(default)).strip()
        match = re.fullmatch(r"([0-9]{1,9}) ?([smhd]?)", text)
        if match is None:
            raise self.error(f"{name}: {text!r} is not a duration. Write it as 90s, 5m, 2h or 1d.", name)
        return int(match[1]) * _SECONDS[match[2] or "s"]

    def mapping(self, name: str) -> dict[str, str]:
        """Return a mapping of strings to strings, in the order of the file."""
        section = self.section(name, name)
        return {} if section is None else {key: section.text(key) for key in section.nodes}

    def section(self, name: str, title: str) -> Section | None:
        """Return a nested mapping as a section, or None if the name is absent."""
        node = self.nodes.get(name)
        return None if node is None else section_of(node, self.source, title)

    def plain(self, name: str) -> dict[str, Any]:
        """Return a mapping with YAML's implicit types, for parts that other modules interpret."""
        if self.section(name, name) is None:
            return {}
        try:
            value: dict[str, Any] = _constructed(self.nodes[name])
        except yaml.YAMLError as error:
            raise self.error(f"{name}: {_problem(error)}", name) from error
        return value

    def is_mapping(self, name: str) -> bool:
        """Return whether the value is a mapping."""
        return isinstance(self.nodes.get(name), yaml.MappingNode)

    def entries(self, name: str) -> tuple[str | Section, ...]:
        """Return the items of a list of strings or mappings. A scalar is a list of one string."""
        node = self.nodes.get(name)
        if node is None:
            return ()
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return tuple(
            section_of(item, self.source, name) if isinstance(item, yaml.MappingNode) else self._scalar(item, name)
            for item in items
        )

    def _scalar(self, node: yaml.Node, name: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL_TAG:
            kind = _KINDS.get(type(node), "nothing")
            line = node.start_mark.line + 1
            message = f"{self.source}:{line}: {name}: expected a string, found {kind}."
            raise UserError(message, file=self.source, line=line, name=name)
        return str(node.value)


def read_section(text: str, *, source: str, title: str) -> Section:
    """Return the mapping in a YAML document; raise UserError with file and line if it is not a mapping."""
    try:
        _refuse_bombs(text, source)
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + 1 if mark is not None else 1
        raise UserError(f"{source}:{line}: not valid YAML: {_problem(error)}", file=source, line=line) from error
    if node is None:
        raise UserError(f"{source}:1: the file is empty; expected {title}.", file=source, line=1)
    return section_of(node, source, title)


def read_value(text: str, *, source: str) -> Any:
    """Return a YAML value; raise UserError if the YAML is not valid."""
    try:
        _refuse_bombs(text, source)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{source}: {text!r} is not valid YAML: {_problem(error)}", setting=source) from error


def section_of(node: yaml.Node, source: str, title: str) -> Section:
    """Convert a mapping node to a section; raise UserError for other nodes or a duplicate name."""
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{source}:{line}: {title}: expected a mapping of names to values.", file=source, line=line)
    section = Section(source, title, line)
    for key, value in node.value:
        name = section._scalar(key, title)
        first, line = section.lines.get(name), key.start_mark.line + 1
        if first is not None:
            raise UserError(f"{source}:{line}: {name!r} is on line {first} already.", file=source, line=line)
        section.lines[name] = line
        if value.tag != _NULL_TAG:
            section.nodes[name] = value
    return section


def _refuse_bombs(text: str, source: str) -> None:
    """Raise UserError for too deep nesting, and for aliases that expand to too many values.

    Deep nesting exhausts the loader's stack. Nested aliases are small until they are expanded for printing or
    iteration.
    """
    if "*" not in text and sum(map(text.count, _DEEPER)) < _MAX_DEPTH:
        return
    # The number of values per open collection (outermost first), and the number of values per anchor.
    sizes, anchors = [0], dict[str | None, int]()
    opened: list[str | None] = []
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 1
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            opened.append(event.anchor)
            if len(opened) > _MAX_DEPTH:
                raise UserError(f"{source}:{line}: more than {_MAX_DEPTH} levels of nesting.", file=source, line=line)
            continue
        anchor, size = None, 0
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = opened.pop(), sizes.pop()
        elif isinstance(event, yaml.AliasEvent):
            size = anchors.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        sizes[-1] += size
        if anchor is not None:
            anchors[anchor] = size
        if sizes[-1] > _MAX_VALUES:
            raise UserError(
                f"{source}:{line}: more than {_MAX_VALUES} values after aliases (*name) are expanded.",
                file=source,
                line=line,
            )


def _constructed(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).rstrip(".") + "."
