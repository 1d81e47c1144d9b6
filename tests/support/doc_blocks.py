"""Run the code blocks of a documentation page in their order, as a reader would paste them.

All blocks of a page share one temporary folder. It is the current directory and replaces `/tmp`; `.venv` in it is this
environment. HTML comments, which readers do not see, control the run.

On a page:

    <!-- blocks run in: spark -->    in tests/spark or tests/airflow (default: core, without Spark); or the path of a
                                     test module that follows the page by itself
    <!-- continues: PAGE -->         the blocks of that page (a path below docs/) run before

At a place of a page:

    <!-- setup: python CODE -->      code that runs here and that readers do not see; also `setup: sh`
    <!-- not run: REASON -->         before a block: it cannot run in a test
    <!-- output -->                  before a text block: the output of the block before; `...` is any text

Languages:

    python      One namespace for the page. On a page that runs in airflow each block is a DAG file.
    sh, bash    Stops at the first command that fails. Exported variables and the current directory remain.
    yaml        A table spec, or sections of one. json, toml and ini have to be valid.
    text        Not code, as is a block without a language.

A first line such as `# tables/orders.yaml` names a file: the block is written to it as well. A Python file is executed
by itself. Blocks in other languages need the comment `not run`.
"""

from __future__ import annotations

import configparser
import doctest
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakehouse.spec.table.table_spec import parse_spec

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TEXT = ("", "text")
SHELL = ("sh", "bash")
SUITES = ("core", "spark", "airflow")
#: A whole spec, to which sections of a spec are added.
_BASE = {"table": "orders", "location": "lake/orders", "record_key": "order_id", "partition_by": "day"}
_PART = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w{}-]*)[^\n]*\n(?P<code>.*?)^ *```|<!--(?P<comment>.*?)-->",
    re.DOTALL | re.MULTILINE,
)
_NAMED = re.compile(r"# ([\w./-]+\.\w+)\n")
#: A block has up to eight commands, each of which takes half a minute on a loaded machine.
_SHELL_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A code block of a page, or a hidden setup block.

    Attributes:
        language: The language after the fence.
        code: The text of the block.
        line: The line of the page on which `code` begins.
        not_run: The reason why a test cannot run it; None if a test runs it.
        is_output: Whether it is the output of the block before.
    """

    language: str
    code: str
    line: int
    not_run: str | None = None
    is_output: bool = False

    @property
    def file(self) -> str | None:
        """The file that the first line of the block names."""
        match = _NAMED.match(self.code)
        return match[1] if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The blocks of a page, in order.

    Attributes:
        path: The path below the root of the repository.
        suite: One of `SUITES`, or the path of a test module.
        continues: The page whose blocks run before.
        blocks: The blocks.
    """

    path: str
    suite: str = "core"
    continues: str | None = None
    blocks: tuple[Block, ...] = ()

    @property
    def runnable(self) -> set[str]:
        """The blocks that a test runs, as `path:line`: all code without a reason not to."""
        code = (block for block in self.blocks if block.language not in TEXT and not block.is_output)
        return {f"{self.path}:{block.line}" for block in code if block.not_run is None}


def read_page(path: str, text: str) -> Page:
    """Return the blocks of a Markdown text; raise ValueError for a comment that controls nothing."""
    blocks: list[Block] = []
    suite, continues, pending, before = "core", None, "", 0
    for part in _PART.finditer(text):
        comment = (part["comment"] or "").strip()
        if part["comment"] is None:
            gap = text[before : part.start()].strip()
            blocks.append(_block(part, text, pending if not gap else ""))
            if pending and gap:
                raise ValueError(f"{path}: the comment {pending!r} is not directly before a block")
            pending = ""
            continue
        if pending:
            raise ValueError(f"{path}: the comment {pending!r} is not directly before a block")
        before = part.end()
        if comment.startswith("blocks run in:"):
            suite = comment.partition(":")[2].strip()
        elif comment.startswith("continues:"):
            continues = comment.partition(":")[2].strip()
        elif comment.startswith("setup:"):
            language, _, code = comment.partition(":")[2].strip().partition("\n")
            blocks.append(Block(language=language.strip(), code=code + "\n", line=_line(text, part.start()) + 1))
        elif comment == "output" or comment.startswith("not run:"):
            pending = comment
    if pending:
        raise ValueError(f"{path}: the comment {pending!r} is not directly before a block")
    return Page(path=path, suite=suite, continues=continues, blocks=tuple(blocks))


def pages(suite: str | None = None) -> list[Page]:
    """Return the pages of the documentation that have blocks; only those of one suite if it is given."""
    paths = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    paths += sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
    read = [read_page(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]
    return [page for page in read if page.blocks and suite in (None, page.suite)]


@dataclass(slots=True)
class PageRun:
    """Runs the blocks of pages in a folder.

    Attributes:
        folder: The temporary folder.
        monkeypatch: Restores the environment and the current directory after the test.
        run_dag: Parses a DAG file; None where Airflow is not installed.
        names: The namespace of Python blocks.
        printed: The output of the last block.
        executed: The blocks that ran, as `path:line`.
    """

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    run_dag: Callable[[Path], None] | None = None
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""
    executed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        link = self.folder / ".venv"
        if not link.exists():
            link.symlink_to(sys.prefix)
        self.monkeypatch.chdir(self.folder)
        self.monkeypatch.syspath_prepend(str(self.folder))
        self.monkeypatch.setenv("HOME", str(self.folder))
        self.monkeypatch.setenv("PATH", os.pathsep.join((f"{sys.prefix}/bin", os.environ["PATH"])))
        self.monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(ROOT / "plugins"))))

    def run(self, page: Page) -> None:
        """Run all blocks of a page, and those of the page that it continues."""
        if page.continues is not None:
            path = DOCS / page.continues
            self.run(read_page(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")))
        for block in page.blocks:
            if block.is_output:
                self._compare(page, block)
            elif block.not_run is None and block.language not in TEXT:
                self._run_block(page, block)
                self.executed.append(f"{page.path}:{block.line}")

    def _run_block(self, page: Page, block: Block) -> None:
        code = block.code.replace("/tmp/", f"{self.folder}/")
        where = f"{page.path}:{block.line}"
        if block.file is not None:
            file = self.folder / block.file.removeprefix("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code, encoding="utf-8")
        if block.language == "python":
            self._python(page, block, code)
        elif block.language in SHELL:
            self._shell(where, code)
        else:
            check_document(block.language, code, where)

    def _python(self, page: Page, block: Block, code: str) -> None:
        out = StringIO()
        if page.suite == "airflow":
            assert self.run_dag is not None, f"{page.path}: its blocks run in tests/airflow only"
            file = self.folder / (block.file or f"dags_of_page/block_{block.line}.py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code, encoding="utf-8")
            self.run_dag(file)
            return
        with redirect_stdout(out):
            if block.file is not None:
                runpy.run_path(str(self.folder / block.file))
            else:
                # Blank lines before the code let a traceback show the line of the page.
                exec(compile("\n" * (block.line - 1) + code, str(ROOT / page.path), "exec"), self.names)
        self.printed = out.getvalue()

    def _shell(self, where: str, code: str) -> None:
        state = self.folder / ".shell-state"
        script = f"set -euo pipefail\n{code}\n{{ pwd; env -0; }} > {shlex.quote(str(state))}\n"
        result = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=_SHELL_TIMEOUT_S, check=False
        )
        assert result.returncode == 0, f"{where}: exit code {result.returncode}\n{result.stdout}{result.stderr}"
        directory, _, variables = state.read_text(encoding="utf-8").partition("\n")
        state.unlink()
        self.monkeypatch.chdir(directory)
        for name, _, value in (entry.partition("=") for entry in variables.split("\0") if entry):
            if os.environ.get(name) != value and name not in ("_", "SHLVL", "PWD", "OLDPWD"):
                self.monkeypatch.setenv(name, value)
        self.printed = result.stdout

    def _compare(self, page: Page, block: Block) -> None:
        shown = self.printed.replace(f"{self.folder}/", "/tmp/")
        same = doctest.OutputChecker().check_output(block.code, shown, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        assert same, f"{page.path}:{block.line}: the block before prints\n{shown}\nbut the page shows\n{block.code}"


def check_document(language: str, code: str, where: str) -> None:
    """Raise an error if a document of this language is not valid; YAML is a table spec or sections of one."""
    if language == "yaml":
        document = yaml.safe_load(code)
        whole = document if "table" in document and "location" in document else {**_BASE, **document}
        parse_spec(code if whole is document else yaml.safe_dump(whole), source=where)
    elif language == "json":
        json.loads(code)
    elif language == "toml":
        tomllib.loads(code)
    elif language in ("ini", "cfg"):
        configparser.ConfigParser(interpolation=None).read_string(code)
    else:
        raise AssertionError(
            f"{where}: no test can run {language!r}; write '<!-- not run: REASON -->' before the block"
        )


def _block(part: re.Match[str], text: str, comment: str) -> Block:
    reason = comment.partition(":")[2].strip() if comment.startswith("not run:") else None
    if reason == "":
        raise ValueError(f"line {_line(text, part.start())}: 'not run' needs a reason")
    code = part["code"]
    if part["indent"]:
        code = re.sub(rf"^{part['indent']}", "", code, flags=re.MULTILINE)
    return Block(
        language=part["language"],
        code=code,
        line=_line(text, part.start()) + 1,
        not_run=reason,
        is_output=comment == "output",
    )


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
