"""The list of mutants is current, and the runner tells what survives; `make reliability` runs all of them."""

from __future__ import annotations

from pathlib import Path

from tests.reliability.mutants import CLAIMS, MUTANTS, Mutant, run_mutants

ROOT = Path(__file__).parents[2]


def test_each_mutant_names_a_text_that_occurs_once_and_tests_that_exist() -> None:
    stale = [m.name for m in MUTANTS if (ROOT / "lakehouse" / m.file).read_text(encoding="utf-8").count(m.text) != 1]
    assert stale == []
    assert [m.name for m in MUTANTS for path in m.tests.split() if not (ROOT / path).is_file()] == []
    assert len({(m.file, m.text) for m in MUTANTS}) == len(MUTANTS) == 40
    assert all(m.text != m.mutated for m in MUTANTS)


def test_runner_tells_survivors_and_texts_that_are_gone(tmp_path: Path) -> None:
    killed = Mutant("core/timeline/claims.py", "return _highest(env, instant) == token", "return True", CLAIMS)
    survivor = Mutant(
        "core/timeline/claims.py", "if file.name.startswith(_PREFIX)]", "if _PREFIX in file.name]", CLAIMS
    )
    gone = Mutant("core/timeline/claims.py", "no such text", "", CLAIMS)
    found = run_mutants(tmp_path, (killed, survivor, gone), workers=1)
    assert [text.split(" ")[0] for text in found] == ["survived", "out"]
