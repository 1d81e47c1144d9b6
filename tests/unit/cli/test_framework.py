"""The command line itself: help, usage mistakes, unexpected errors, completion and introspection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lakehouse.cli import options
from lakehouse.cli.introspect import CommandPage, command_pages
from lakehouse.cli.main import main, program
from lakehouse.cli.nouns import NOUNS
from lakehouse.errors import INTERRUPTED, LakehouseError, UserError
from lakehouse.spec.table.services import SERVICES

HEAVY = {"pyspark", "pyarrow", "numpy", "pandas", "sqlalchemy", "alembic", "fastavro", "obstore", "airflow", "rich"}


@pytest.fixture(autouse=True)
def excepthook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the hook that `main` replaces."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield


def loaded(*words: str) -> set[str]:
    """Run a command in its own process and return the top-level packages that it imported."""
    script = f"""
import sys
from lakehouse.cli.main import main
code = main({list(words)!r})
print("\\nMODULES", code, *sorted({{name.partition(".")[0] for name in sys.modules}}))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    code, *names = run.stdout.rpartition("MODULES ")[2].split()
    assert code == "0", run.stderr
    return set(names)


def test_help_lists_every_noun_with_a_sentence_and_imports_nothing_heavy(capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded("--help") & HEAVY == set()
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert set(SERVICES) <= set(NOUNS)
    for name, noun in NOUNS.items():
        assert f"{name} {noun.text}" in shown, name


def test_help_imports_no_module_of_a_command() -> None:
    script = """
import sys
from lakehouse.cli.main import main
main(["--help"])
print("MODULES", *(name for name in sys.modules if name.startswith("lakehouse.cli.commands.")))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert run.stdout.rpartition("MODULES")[2].split() == []


def test_program_without_words_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: lakehouse")
    assert main(["help", "options"]) == 0
    assert capsys.readouterr().out.startswith("Usage: lakehouse options")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["tabel"], ("unknown command 'tabel'", "Did you mean 'table'?")),
        (["demo", "run"], ("the command 'demo' was removed", "run `make demo` in a clone")),
        (["completion"], ("a verb is missing", "bash, zsh, fish")),
        (["completion", "bsh"], ("'bsh' is unknown", "Did you mean 'bash'?")),
        (["options", "--markdwn"], ("no flag '--markdwn'", "Did you mean '--markdown'?")),
        (["options", "--output", "jsn"], ("--output", "'jsn' is not one of text, json", "Did you mean 'json'?")),
        (["options", "--output"], ("--output", "needs a value")),
        (["options", "more"], ("unexpected argument 'more'",)),
        (["--debgu", "options"], ("no flag '--debgu'", "Did you mean '--debug'?")),
    ],
)
def test_usage_mistake_is_one_paragraph_that_names_the_nearest_word(
    words: list[str], parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == UserError.exit_code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert shown.err.startswith("UserError: lakehouse")
    for part in parts:
        assert part in shown.err


@pytest.mark.parametrize("words", [["--debug", "options"], ["options", "--debug"], ["options"]])
def test_traceback_of_an_unexpected_error_is_printed_only_with_debug(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("sqlite://me:pa55word@host is unreachable")

    monkeypatch.setattr(options, "declarations", broken)
    assert main(words) == LakehouseError.exit_code
    shown = capsys.readouterr().err
    assert "pa55word" not in shown
    assert shown.splitlines()[-1].startswith("ZeroDivisionError: sqlite://me:***@host is unreachable")
    assert ("Traceback" in shown) == ("--debug" in words)
    assert len(shown.splitlines()) == 1 or "--debug" in words
    assert "--debug shows its traceback" in shown


def test_interrupted_command_ends_with_the_exit_code_of_shells(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "declarations", stopped)
    assert main(["options"]) == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


def test_program_ends_quietly_when_the_reader_of_its_output_has_ended() -> None:
    command = f"{sys.executable} -m lakehouse options | head -1; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, check=False, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert len(run.stdout.splitlines()) == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_LAKEHOUSE_COMPLETE={shell}_complete" in capsys.readouterr().out


def completed(*words: str, environ: dict[str, str] | None = None) -> list[str]:
    """Return what the shell offers for the last of the words."""
    variables = {
        **os.environ,
        **(environ or {}),
        "_LAKEHOUSE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("lakehouse", *words)),
        "COMP_CWORD": str(len(words)),
    }
    run = subprocess.run(
        [sys.executable, "-m", "lakehouse"], env=variables, capture_output=True, check=False, text=True
    )
    assert run.stderr == ""
    return [line.partition(",")[2] for line in run.stdout.splitlines()]


def test_shell_completes_nouns_verbs_and_flags() -> None:
    assert completed("tab") == ["table"]
    assert completed("completion", "") == ["bash", "zsh", "fish"]
    assert completed("options", "--ma") == ["--markdown"]
    assert completed("options", "--output", "j") == ["json"]


def test_pages_describe_every_command_and_every_flag_with_a_sentence() -> None:
    pages = {page.path: page for page in command_pages(program())}
    assert set(NOUNS) == {path[0] for path in pages if path}
    for path, page in pages.items():
        if path:
            check(page)


def check(page: CommandPage) -> None:
    """Assert that a page has a text, and a command also an example and a sentence for each flag."""
    name = " ".join(page.path)
    assert page.text.strip().partition("\n\n")[0].endswith("."), f"{name}: the help is no sentence"
    if not page.is_group:
        assert page.examples and any(f"lakehouse {name}" in example for example in page.examples), name
    for parameter in page.parameters:
        assert parameter.text.endswith("."), f"{name} {parameter.flags}: {parameter.text!r} is no sentence"


def test_every_word_of_help_prints_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for page in command_pages(program()):
        assert main([*page.path, "--help"]) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("Usage: lakehouse") and "--debug" in shown, page.path


def test_options_print_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "--output", "json"]) == 0
    assert "hoodie.clean.commits.retained" in {option["key"] for option in json.loads(capsys.readouterr().out)}
