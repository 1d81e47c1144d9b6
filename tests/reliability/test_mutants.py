"""The list of mutants is up to date and the runner reports survivors; `make reliability` runs all mutants."""

from __future__ import annotations

from pathlib import Path

from tests.reliability.mutants import CLAIMS, MUTANTS, Mutant, run_mutants

ROOT = Path(__file__).parents[2]


def test_each_mutant_has_a_unique_text_and_existing_tests() -> None:
    stale = [m.name for m in MUTANTS if (ROOT / "lakehouse" / m.file).read_text(encoding="utf-8").count(m.text) != 1]
    assert stale == []
    assert [m.name for m in MUTANTS for path in m.tests.split() if not (ROOT / path).is_file()] == []
    assert len({(m.file, m.text) for m in MUTANTS}) == len(MUTANTS) == 52
    assert all(m.text != m.mutated for m in MUTANTS)


def test_runner_reports_survivors_and_outdated_texts(tmp_path: Path) -> None:
    killed = Mutant("core/timeline/claims.py", "return _highest(env, instant) == token", "return True", CLAIMS)
    survivor = Mutant(
        "core/timeline/claims.py", "if file.name.startswith(_PREFIX)]", "if _PREFIX in file.name]", CLAIMS
    )
    outdated = Mutant("core/timeline/claims.py", "no such text", "", CLAIMS)
    found = run_mutants(tmp_path, (killed, survivor, outdated), workers=1)
    assert [text.split(" ")[0] for text in found] == ["survived", "out"]
