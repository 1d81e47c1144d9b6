"""The pages about `lakehouse doctor` and about messages: checks, pools and messages are those of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from lakehouse.platform.catalog.connect import database_state
from lakehouse.spec.contracts.doctor import CHECKS, checks_markdown
from lakehouse.spec.table.services import SERVICES
from lakehouse_airflow.pools import POOLS

ROOT = Path(__file__).parents[2]
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
AIRFLOW = ROOT / "docs" / "airflow"
DOCTOR = AIRFLOW / "doctor.md"
#: Code spans in symptoms that are no messages.
_OTHER = {"scheduled", "spec_errors.py", "spec_errors...", "..."}


def texts_of_code() -> str:
    """Return all string constants of the packages, one per line; parts of an f-string are separate."""
    files = [*(ROOT / "lakehouse").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in files)
    nodes = (node for tree in trees for node in ast.walk(tree))
    return "\n".join(n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))


def messages() -> list[str]:
    """Return the messages in the first columns of the page."""
    rows = [line for line in TROUBLESHOOTING.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    spans = [span for row in rows for span in re.findall(r"`([^`]+)`", row.split(" | ")[0])]
    return [span for span in spans if span not in _OTHER]


@pytest.fixture(scope="module")
def code() -> str:
    return texts_of_code()


def test_page_of_the_doctor_has_the_generated_table_of_checks() -> None:
    assert f"\n{checks_markdown()}\n" in DOCTOR.read_text(encoding="utf-8")


def test_page_of_the_doctor_has_every_pool_with_its_flag_and_variable() -> None:
    page = DOCTOR.read_text(encoding="utf-8")
    for pool in POOLS:
        assert f"| {pool.slots} | `{pool.flag}` | `{pool.variable}` |" in page
        assert f"| `{pool.name}` |" in page


def table_rows(path: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading, without its own heading."""
    text = path.read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.group().splitlines()[2:]]


def test_page_of_airflow_has_every_pool_with_its_slots() -> None:
    rows = table_rows(AIRFLOW / "index.md", "## Pools")
    assert [(row[0], row[-1]) for row in rows] == [(f"`{pool.name}`", str(pool.slots)) for pool in POOLS]


def test_page_of_services_has_every_service_with_its_dag() -> None:
    rows = table_rows(ROOT / "docs" / "services.md", "## What each service does")
    assert [(row[0], row[-1]) for row in rows] == [(f"`{name}`", f"`services.{name}`") for name in SERVICES]


def sample_rows() -> dict[str, str]:
    """Return the results in the sample of the doctor's output, by check."""
    text = (AIRFLOW / "add-to-your-airflow.md").read_text(encoding="utf-8")
    (sample,) = re.findall(r"```text\ncheck .*\n-.*\n((?:.*\n)+?)```", text)
    entries = re.split(r"^(?=\w)", sample, flags=re.MULTILINE)[1:]
    return {entry.split()[0]: " ".join(entry.split()[1:]) for entry in entries}


def test_sample_of_the_doctor_has_checks_in_their_order_and_current_values(tmp_path: Path) -> None:
    rows = sample_rows()
    assert len(rows) > 5
    assert list(rows) == [check for check in CHECKS if check in rows]
    pools = sorted(POOLS, key=lambda pool: pool.name)
    assert rows["pools"] == f"ok {', '.join(f'{pool.name} {pool.slots} slots' for pool in pools)}"
    database = tmp_path / "catalog.db"
    database.touch()
    state = database_state(f"sqlite:///{database}")
    assert state is not None
    assert rows["migrations"] == f"ok schema revision {state.newest}"


@pytest.mark.parametrize("message", messages())
def test_message_of_a_symptom_is_one_of_the_product(message: str, code: str) -> None:
    assert [part for part in message.split("...") if part.strip() not in code] == []


def test_a_message_that_the_product_does_not_have_is_found(code: str) -> None:
    assert "the disk is made of cheese" not in code
    assert len(messages()) > 20


def test_checks_that_the_page_recommends_exist() -> None:
    named = set(re.findall(r"--check (\w+)", TROUBLESHOOTING.read_text(encoding="utf-8")))
    assert named
    assert named <= CHECKS.keys()
