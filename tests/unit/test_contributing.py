"""The recipes of CONTRIBUTING.md, applied to copies of the repository; their commands run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse.core.table.services import is_implemented
from lakehouse.platform.services.registry import PLATFORM_IMPLEMENTATIONS
from lakehouse.spec.table.services import SERVICE_SPECS, SERVICES
from tests.support.doc_blocks import SHELL, Block, read_page

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RECIPES = {title: text for title, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)}
COPIED = ("lakehouse", "plugins", "dags", "demo", "docs", "tests", "pyproject.toml", "CONTRIBUTING.md")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "_build", ".hypothesis")


def copy_of_repository(folder: Path) -> Path:
    """Copy the files that recipes change, read or test."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=_LEFT_OUT)
        else:
            shutil.copy(ROOT / name, folder / name)
    # The command of this environment would import the package of the repository.
    command = folder / "bin" / "lakehouse"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m lakehouse "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    return folder


def changed(text: str, hunks: str) -> str:
    """Return a text with the changes of a recipe; raise ValueError if a hunk does not match exactly once."""
    for hunk in hunks.split("@@\n"):
        lines = hunk.splitlines()
        old = "\n".join(line[1:] for line in lines if line.startswith(("-", " ")))
        new = "\n".join(line[1:] for line in lines if line.startswith(("+", " ")))
        if text.count(old) != 1:
            raise ValueError(f"{text.count(old)} places for\n{old}")
        text = text.replace(old, new)
    return text


def apply(block: Block, folder: Path) -> None:
    """Write the new file of a block, change the file that it names, or run its commands."""
    if block.language in SHELL:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(folder), str(folder / "plugins"))),
            "PATH": os.pathsep.join((str(folder / "bin"), f"{sys.prefix}/bin", os.environ["PATH"])),
        }
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"line {block.line}:\n{result.stdout[-3000:]}{result.stderr[-3000:]}"
        return
    assert block.file is not None, f"line {block.line}: the first line of the block names no file"
    path = folder / block.file
    if block.language == "diff":
        path.write_text(changed(path.read_text(encoding="utf-8"), block.code.partition("\n")[2]), encoding="utf-8")
    else:
        assert not path.exists(), f"{block.file} exists already"
        path.write_text(block.code.partition("\n")[2], encoding="utf-8")


def test_contributing_has_a_recipe_for_every_extension_point() -> None:
    assert set(RECIPES) == {
        f"Add {what}"
        for what in (
            "an option",
            "a key of the table spec",
            "a metric",
            "a command",
            "a lock provider",
            "an index",
            "a storage",
            "a source",
            "a table service",
            "a DAG",
        )
    }


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_recipe_can_be_followed_literally(title: str, tmp_path: Path) -> None:
    folder = copy_of_repository(tmp_path)
    blocks = read_page("CONTRIBUTING.md", RECIPES[title]).blocks
    assert any(block.language in SHELL for block in blocks)
    assert all(block.not_run is None for block in blocks)
    for block in blocks:
        apply(block, folder)


def test_table_service_touches_at_most_six_files_of_the_product() -> None:
    blocks = read_page("CONTRIBUTING.md", RECIPES["Add a table service"]).blocks
    files = {block.file for block in blocks if block.file is not None}
    assert files and all(file.startswith(("lakehouse/", "plugins/", "dags/")) for file in files)
    assert len(files) <= 6, sorted(files)


def test_recipe_of_an_index_changes_three_files_of_the_package_and_one_of_the_tests() -> None:
    files = [block.file for block in read_page("CONTRIBUTING.md", RECIPES["Add an index"]).blocks if block.file]
    assert [name for name in files if name.startswith("lakehouse/")] == [
        "lakehouse/model/index_type.py",
        "lakehouse/core/index/whole_partition_index.py",
        "lakehouse/core/operations/placement/registry.py",
    ]
    assert [name for name in files if name.startswith("tests/")] == ["tests/contract/test_index.py"]


def test_a_change_that_matches_no_place_is_refused() -> None:
    with pytest.raises(ValueError, match="0 places"):
        changed("a = 1\n", "-b = 1\n+b = 2\n")
    assert changed("a = 1\nb = 2\n", "-a = 1\n+a = 3\n@@\n b = 2\n+c = 4\n") == "a = 3\nb = 2\nc = 4\n"


def test_services_are_complete_in_every_place_that_a_recipe_names() -> None:
    implemented = {spec.name for spec in SERVICE_SPECS if is_implemented(spec)}
    assert implemented | set(PLATFORM_IMPLEMENTATIONS) == set(SERVICES)
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "dags").glob("*.py"))
    assert [name for name in SERVICES if f'usual_service_dag("{name}"' not in pages] == []
