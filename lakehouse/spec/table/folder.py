"""Find table specs in directories, and read them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from lakehouse.errors import UserError
from lakehouse.spec.table.table_spec import TableSpec, load_spec

_SUFFIXES = (".yaml", ".yml")
_TABLE = re.compile(r"^table:[ \t]*[\"']?([\w.-]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecProblem:
    """A file that cannot be used as a spec; `table` is the table that it declares, empty if unknown."""

    file: str
    table: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFolder:
    """The specs of some files, and the problems of the other files."""

    specs: tuple[TableSpec, ...] = ()
    problems: tuple[SpecProblem, ...] = ()


def spec_paths(directories: Iterable[Path]) -> tuple[Path, ...]:
    """Return every `*.yaml` and `*.yml` below the directories, sorted."""
    return tuple(sorted({path for at in directories for suffix in _SUFFIXES for path in at.rglob(f"*{suffix}")}))


def read_specs(paths: Iterable[Path], tables: Collection[str] = ()) -> SpecFolder:
    """Read the specs in files, or only those that declare one of `tables`.

    A table that two files declare is a problem, because it is ambiguous.
    """
    specs: dict[str, TableSpec] = {}
    problems: list[SpecProblem] = []
    for path in paths:
        try:
            name = _declared(path)
            if tables and name not in tables:
                continue
            spec = load_spec(path)
        except (OSError, UnicodeDecodeError) as error:
            problems.append(SpecProblem(file=str(path), table="", message=f"cannot be read: {error}"))
        except UserError as error:
            problems.append(SpecProblem(file=str(path), table=name, message=error.message))
        else:
            first = specs.setdefault(spec.table, spec)
            if first is not spec:
                message = f"table {spec.table!r} is declared in {first.source} already"
                problems.append(SpecProblem(file=str(path), table=spec.table, message=message))
    twice = {problem.table for problem in problems}
    return SpecFolder(specs=tuple(s for s in specs.values() if s.table not in twice), problems=tuple(problems))


def _declared(path: Path) -> str:
    """Return the name after `table:`. The file is not parsed, because that takes a hundred times as long."""
    match = _TABLE.search(path.read_text(encoding="utf-8"))
    return match[1] if match else ""
