"""Follow a page as a new user: run its code blocks in order in one shell, in fresh environments."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_blocks import DOCS, ROOT, SHELL, TEXT, Block, read_page
from tests.support.postgresql import Server, binaries

PAGE = DOCS / "airflow/add-to-your-airflow.md"
#: What a checkout has that pip and make read.
SOURCES = (
    "Makefile",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "constraints-spark.txt",
    "lakehouse",
    "plugins",
    "tests/matrix",
)
#: Variables of the process that runs the tests, which a new user does not have.
NOT_INHERITED = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "PYSPARK_PYTHON",
    "PYSPARK_DRIVER_PYTHON",
)
NO_INDEX = ("No matching distribution", "NewConnectionError", "ConnectTimeoutError", "ProxyError", "ReadTimeoutError")
#: A table row with a step, the words of the steps, and the words of other versions.
_SPANS = re.compile(r"`([^`]+)`")
ROWS = """
import json, sys
from lakehouse import load_catalog
table = load_catalog().load_table(sys.argv[1])
print(json.dumps(table.scan().to_arrow().to_pylist(), default=str))
"""


@dataclass(slots=True)
class Reader:
    """Follows the page: runs its blocks in order in one shell session, whose variables and folder remain.

    Attributes:
        folder: The current directory of the session.
        environ: The environment variables of the session.
        sections: The blocks of each section, by the number of its heading.
        replaced: Patterns in blocks and the words that the page has for this version instead.
        executed: The lines of the blocks that ran.
    """

    folder: Path
    environ: dict[str, str]
    sections: dict[int, tuple[Block, ...]]
    replaced: tuple[tuple[re.Pattern[str], str], ...] = ()
    executed: list[str] = field(default_factory=list)
    done: int = 0

    def follow(self, last: int) -> None:
        """Run the blocks of all sections to `last` that have not run yet."""
        while self.done < last:
            self.done += 1
            for block in self.sections[self.done]:
                self.run(block)
                self.executed.append(block.code)

    def run(self, block: Block) -> None:
        """Run a block of shell commands, or write a block to the file that its first line names; text is not code."""
        if block.language in TEXT:
            return
        code = self.code(block)
        if block.language not in SHELL:
            assert block.file is not None, f"a block of {block.language} names no file:\n{code}"
            (self.folder / block.file).write_text(code, encoding="utf-8")
            return
        self.shell(code)

    def code(self, block: Block) -> str:
        """Return the code of a block with the words of this version."""
        code = block.code
        for pattern, words in self.replaced:
            code = pattern.sub(words, code)
        return code

    def shell(self, code: str) -> str:
        """Run shell commands; return their output."""
        script = f'set -euo pipefail\n{code}\n{{ pwd; env -0; }} > "$STATE"\n'
        state = self.folder / ".state"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env={**self.environ, "STATE": str(state)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode and any(sign in done.stderr for sign in NO_INDEX):
            pytest.skip("missing: a package index that pip reaches")
        assert done.returncode == 0, (
            f"exit code {done.returncode}\n{code}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        directory, _, variables = state.read_text(encoding="utf-8").partition("\n")
        state.unlink()
        self.folder = Path(directory)
        self.environ = dict(entry.split("=", 1) for entry in variables.split("\0") if entry)
        return done.stdout

    def start(self, code: str) -> subprocess.Popen[str]:
        """Start shell commands in another shell of the user."""
        return subprocess.Popen(
            ["bash", "-c", f"set -euo pipefail\n{code}"],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table of the catalog, read in Spark's environment."""
        output = self.shell(f'"$LAKEHOUSE_SPARK_HOME/bin/python" -c "{ROWS}" {table}')
        rows: list[dict[str, Any]] = json.loads(output)
        return rows


def sections() -> dict[int, tuple[Block, ...]]:
    """Return the blocks of each numbered section of the page."""
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    numbered = {int(part.split(".")[0]): part for part in parts[1:] if part[0].isdigit()}
    return {number: read_page(PAGE.name, part).blocks for number, part in numbered.items()}


def words_of_version(heading: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the replacements that the page has for a version, from its tables with a column of this heading.

    A cell `equal` replaces nothing. Capitals such as FROM in a command stand for any word.
    """
    replaced = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        heads, _, *rows = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()]
        heads = [head.strip("| ") for head in heads]
        if "instead of" not in heads or heading not in heads:
            continue
        for row in rows:
            old, new = row[heads.index("instead of")], row[heads.index(heading)].strip(" |")
            if new != "equal":
                replaced.append(_replacement(_SPANS.findall(old), _SPANS.findall(new)))
    assert replaced, f"the page has no column {heading!r}"
    return tuple(replaced)


def _replacement(old: list[str], new: list[str]) -> tuple[re.Pattern[str], str]:
    (words,) = old
    pattern = re.escape(words).replace(r"\ ", r"(?:\s|\\\n)+")
    names = re.findall(r"\b[A-Z]{2,}\b", words)
    for name in names:
        pattern = pattern.replace(name, rf"(?P<{name}>\S+)")
    text = "\n".join(new)
    for name in names:
        text = re.sub(rf"\b{name}\b", rf"\\g<{name}>", text)
    return re.compile(pattern), text


def new_user(
    home: Path,
    postgresql: Server,
    settings: Mapping[str, str],
    airflow: Iterable[str],
    replaced: tuple[tuple[re.Pattern[str], str], ...] = (),
) -> Reader:
    """Return a user in a checkout of the project, with an Airflow of their own that has never seen lakehouse.

    Args:
        home: An empty folder, the home of the user.
        postgresql: The server of Airflow's database and of the catalog.
        settings: Further variables of the user.
        airflow: The arguments of `pip install` for the user's Airflow.
        replaced: The words that the page has for the user's versions.
    """
    checkout = home / "checkout"
    (checkout / "tests").mkdir(parents=True)
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, checkout / name)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in NOT_INHERITED and not name.startswith(("AIRFLOW", "LAKEHOUSE", "PYTEST"))
    }
    programs = home / "airflow-environment" / "bin"
    path = [str(programs), str(binaries()), *(p for p in os.environ["PATH"].split(os.pathsep) if ".venv" not in p)]
    environ = {
        **inherited,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": airflow_database(postgresql),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "HOME": str(home),
        "PATH": os.pathsep.join(path),
        "AIRFLOW_HOME": str(home / "airflow"),
        "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_QUIET": "1",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(postgresql.port),
        "PGUSER": "lakehouse",
        "PGPASSWORD": "trusted",
        **settings,
    }
    user = Reader(checkout, environ, sections(), replaced)
    user.shell(f"""
        {sys.executable} -m venv {programs.parent}
        pip install {" ".join(airflow)}
        createdb airflow
        airflow db migrate
    """)
    return user


def airflow_database(postgresql: Server) -> str:
    """Return the URL of Airflow's database on a server."""
    return postgresql.url.replace("+psycopg:", "+psycopg2:").replace("/postgres", "/airflow")
