"""The page how-to/recover-a-failed-run.md: its sections, and comparisons of their texts with what a run prints."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakehouse.cli.main import main
from tests.support.doc_blocks import DOCS

PAGE = DOCS / "how-to/recover-a-failed-run.md"
_SECTION = re.compile(r"^## Exit code (\d+): .*?$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_CASE = re.compile(r"^### (.*?)$(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
_FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case of the page: its heading, its exit code, the line that a run prints, and the commands to recover."""

    heading: str
    exit_code: int
    text: str
    shown: str
    commands: tuple[str, ...]

    def matches(self, output: str) -> bool:
        """Return whether `output` contains the shown line, in which `...` is any text."""
        pattern = ".*?".join(re.escape(part) for part in self.shown.split("..."))
        return re.search(pattern, output, re.DOTALL) is not None


def cases() -> dict[str, Case]:
    """Return the cases of the page by their headings."""
    found: dict[str, Case] = {}
    for section in _SECTION.finditer(PAGE.read_text(encoding="utf-8")):
        for part in _CASE.finditer(section[2]):
            blocks = _FENCE.findall(part[2])
            (shown,) = [code.strip() for language, code in blocks if language == "text"]
            lines = [line.strip() for language, code in blocks if language == "sh" for line in code.splitlines()]
            found[part[1]] = Case(
                heading=part[1],
                exit_code=int(section[1]),
                text=part[2],
                shown=shown,
                commands=tuple(filter(None, lines)),
            )
    return found


def exit_codes() -> list[int]:
    """Return the exit codes that have a section, in their order."""
    return [int(code) for code, _ in _SECTION.findall(PAGE.read_text(encoding="utf-8"))]


def shows(case: Case, found: tuple[int, str]) -> None:
    """Check that a command ended with the exit code and the message of the page."""
    code, output = found
    assert (code, case.matches(output)) == (case.exit_code, True), f"exit code {code}\n{output}\nshown: {case.shown}"


class Shell:
    """Runs commands of the page in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self.capture = capture

    def run(self, line: str) -> tuple[int, str]:
        """Run a command line of `lakehouse`; return its exit code and what it printed."""
        self.capture.readouterr()
        code = main(shlex.split(line)[1:])
        printed = self.capture.readouterr()
        return code, printed.out + printed.err

    def recover(self, case: Case, **values: str) -> list[str]:
        """Run the commands of a case with values for its variables; return what they printed."""
        outputs = []
        for command in case.commands:
            line = re.sub(r'"?\$(\w+)"?', lambda found: values[found[1]], command)
            line, _, comment = line.partition("  # ")
            expected = re.match(r"exit code (\d+)", comment)
            words = shlex.split(line)
            if words[0] == "lakehouse":
                code, output = self.run(line)
                assert code == int(expected[1] if expected else 0), f"{line}: exit code {code}\n{output}"
                outputs.append(output)
            elif words[0] == "sed":
                _substitute(words)
            else:
                assert words[:2] == ["mkdir", "-p"], f"the test cannot run {line!r}"
                Path(words[2]).mkdir(parents=True)
        return outputs


def _substitute(words: list[str]) -> None:
    """Do `sed -i s/OLD/NEW/ FILE`; raise AssertionError if nothing changes."""
    assert words[1] == "-i"
    _, old, new, _ = words[2].split("/")
    file = Path(words[3])
    before = file.read_text(encoding="utf-8")
    after = before.replace(old, new.replace("\\n", "\n"))
    assert after != before, f"{words[3]} does not contain {old!r}"
    file.write_text(after, encoding="utf-8")
