"""Files and parsed modules of the project, for the architecture tests."""

from __future__ import annotations

import ast
import gc
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("lakehouse", "plugins", "dags", "demo")
EVERYTHING = (*CODE, "tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One Python file: its path relative to the root, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @classmethod
    def of(cls, path: str, text: str) -> Module:
        """Parse `text` as the module at `path`."""
        return cls(path=path, text=text, tree=ast.parse(text, filename=path))

    def within(self, *folders: str) -> bool:
        """Return whether the module is in one of `folders`, or is one of them."""
        return any(self.path == folder or self.path.startswith(f"{folder}/") for folder in folders)


def modules(*folders: str) -> Iterator[Module]:
    """Yield the Python modules below `folders`, sorted by path."""
    for folder in folders:
        yield from _parsed(folder)


@cache
def _parsed(folder: str) -> tuple[Module, ...]:
    # All tests of a process share the trees, and later collections of garbage do not visit them.
    gc.disable()
    try:
        paths = sorted((ROOT / folder).rglob("*.py"))
        return tuple(Module.of(p.relative_to(ROOT).as_posix(), p.read_text(encoding="utf-8")) for p in paths)
    finally:
        gc.freeze()
        gc.enable()


def tracked_files() -> tuple[str, ...]:
    """Return the tracked and existing paths; skip the test if there is no git checkout."""
    if not (ROOT / ".git").exists():
        pytest.skip("missing: a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return tuple(path for path in listed.split("\0") if path and (ROOT / path).is_file())
