"""Rules of alarms: each shipped rule trips and resolves, and wrong rules are refused by name and line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from lakehouse.cli.group import DefaultGroup
from lakehouse.cli.main import program
from lakehouse.cli.nouns import NOUNS
from lakehouse.errors import UserError
from lakehouse.platform.alarms.evaluate import evaluate
from lakehouse.platform.alarms.facts import TableFacts
from lakehouse.platform.alarms.measures import MEASURES
from lakehouse.platform.alarms.parse import load_rules, parse_rules
from lakehouse.platform.catalog.run_history import Run, RunState
from lakehouse.spec.contracts.fleet import Severity, TableNumbers

NOW = 1_760_000_000_000
HOUR, DAY, MB, GB = 3_600_000, 86_400_000, 1_000_000, 1_000_000_000
TABLE = "sales.orders"


def run(state: RunState, *, ago_ms: int = HOUR, tries: int = 1, permanent: bool = False, **actual: int) -> Run:
    error = "RetryableError: no answer" if state is RunState.FAILED else None
    return Run(
        run_id="r1",
        service="compaction",
        state=state,
        tries=tries,
        started_ms=NOW - ago_ms,
        ended_ms=NOW - ago_ms,
        instant=None,
        predicted={},
        actual=actual,
        error=error,
        failed_tries=tries if state is RunState.FAILED else 0,
        failure=error or "",
        permanent=permanent,
        waiting_since_ms=NOW - ago_ms if state is RunState.WAITING else None,
    )


def facts(**more: object) -> TableFacts:
    return TableFacts(table=TABLE, now_ms=NOW, **more)  # type: ignore[arg-type]


def numbers(**more: int) -> TableFacts:
    return facts(numbers=TableNumbers(**more), is_ingested=True)


def runs(*found: Run) -> TableFacts:
    return facts(runs={"compaction": found})


@dataclass(frozen=True)
class Case:
    """Facts that trip a rule, facts at its limit that do not, and words of the sentence."""

    trips: TableFacts
    resolves: TableFacts
    words: str
    subject: str = ""


FAILED, DIED, DONE = RunState.FAILED, RunState.DIED, RunState.COMMITTED
CASES = {
    "unreadable": Case(
        facts(error="CorruptTableError: no hoodie.properties"),
        facts(),
        "the table cannot be read: CorruptTableError: no hoodie.properties",
    ),
    "freshness": Case(
        numbers(last_commit_ms=NOW - 25 * HOUR),
        numbers(last_commit_ms=NOW - 24 * HOUR),
        "no commit for 25h; the objective is 1d",
    ),
    "failed_runs": Case(
        runs(run(FAILED, tries=2), run(FAILED), run(DONE)),
        runs(run(FAILED, tries=2), run(DONE), run(FAILED)),
        "compaction failed 3 times in a row, more than 2: RetryableError: no answer",
        "compaction",
    ),
    "permanent_failure": Case(
        runs(run(FAILED, permanent=True), run(DONE)),
        runs(run(FAILED), run(DONE), run(FAILED, permanent=True)),
        "1 runs of compaction failed with an error that another try does not resolve, more than 0: RetryableError",
        "compaction",
    ),
    "long_wait": Case(
        runs(run(RunState.WAITING, ago_ms=7 * HOUR), run(DONE)),
        runs(run(RunState.WAITING, ago_ms=6 * HOUR)),
        "compaction has been waiting for 7h, more than 6h",
        "compaction",
    ),
    "died_runs": Case(
        runs(run(DIED), run(DIED, ago_ms=25 * HOUR)),
        runs(run(DONE), run(DIED)),
        "runs of compaction died: 1 within 1d, more than 0; the last one is r1",
        "compaction",
    ),
    "expired_lease": Case(
        facts(expired_leases={"clustering": NOW - 660_000}),
        facts(expired_leases={"clustering": NOW - 600_000}),
        "a run of clustering did not release its lease, which expired 11m ago, more than 10m",
        "clustering",
    ),
    "compaction_backlog": Case(
        facts(numbers=TableNumbers(log_bytes=3 * GB), history=((NOW - 7 * HOUR, TableNumbers(log_bytes=GB)),)),
        facts(numbers=TableNumbers(log_bytes=3 * GB), history=((NOW - 7 * HOUR, TableNumbers(log_bytes=2 * GB)),)),
        "grew by 2.00 GB within 6h, more than 1.00 GB; 3.00 GB of log files wait",
    ),
    "small_files": Case(
        numbers(file_groups=200, small_files=150),
        numbers(file_groups=200, small_files=100),
        "75% of the files are small and could be merged, more than 50%: 150 of 200 files are small",
    ),
    "conflicts": Case(
        runs(run(DONE, conflicts=66)),
        runs(run(DONE, conflicts=60), run(DONE, ago_ms=7 * HOUR, conflicts=500)),
        "compaction had 11 conflicts per hour, more than 10",
        "compaction",
    ),
    "late_publication": Case(
        facts(numbers=TableNumbers(unpublished_since_ms=NOW - 2 * HOUR)),
        facts(numbers=TableNumbers(unpublished_since_ms=NOW - HOUR)),
        "a partition has been ready for 2h and is not published; the objective is 1h",
    ),
    "bad_records": Case(
        runs(run(DONE, rows=950, bad_records=50)),
        runs(run(DONE, rows=990, bad_records=10)),
        "5% of the ingested records were bad, more than 1%: 50 of 1,000 records",
        "compaction",
    ),
    "metadata_growth": Case(
        facts(
            numbers=TableNumbers(metadata_bytes=250 * MB),
            history=((NOW - 8 * DAY, TableNumbers(metadata_bytes=100 * MB)), (NOW - DAY, TableNumbers())),
        ),
        facts(
            numbers=TableNumbers(metadata_bytes=200 * MB),
            history=((NOW - 8 * DAY, TableNumbers(metadata_bytes=100 * MB)),),
        ),
        "the metadata table grew by 150% within 7d, more than 100%; it has 250 MB",
    ),
}


def test_every_shipped_rule_has_a_case() -> None:
    assert set(CASES) == {rule.name for rule in load_rules({}).rules}


@pytest.mark.parametrize("name", sorted(CASES))
def test_rule_trips_above_its_limit_and_resolves_at_it(name: str) -> None:
    case, rules = CASES[name], load_rules({})
    (problem,) = [found for found in evaluate(rules, case.trips) if found.rule == name]
    assert case.words in problem.text
    assert problem.subject == case.subject
    assert problem.value is not None and problem.threshold is not None and problem.value > problem.threshold
    assert TABLE in problem.action or name in ("bad_records", "died_runs")
    assert [found for found in evaluate(rules, case.resolves) if found.rule == name] == []


@pytest.mark.parametrize("name", sorted(rule.name for rule in load_rules({}).rules if MEASURES[rule.measure].by_time))
def test_evaluation_by_time_has_the_rules_whose_values_change_without_a_commit(name: str) -> None:
    rules = load_rules({})
    assert [found.rule for found in evaluate(rules, CASES[name].trips, by_time_only=True)] == [name]
    assert evaluate(rules, CASES["small_files"].trips, by_time_only=True) == ()


def test_rule_of_freshness_ignores_tables_without_ingestion() -> None:
    late = facts(numbers=TableNumbers(last_commit_ms=NOW - 30 * DAY))
    assert evaluate(load_rules({}), late) == ()


def test_rule_is_ignored_below_its_least_number() -> None:
    assert evaluate(load_rules({}), numbers(file_groups=9, small_files=9)) == ()


def test_table_of_only_small_files_has_a_problem_with_value_and_threshold() -> None:
    (problem,) = evaluate(load_rules({}), numbers(file_groups=24, small_files=24, partitions=4))
    assert (problem.value, problem.threshold) == (20 / 24, 0.5)
    assert problem.text.endswith("more than 50%: 24 of 24 files are small, in 4 partitions")


def test_one_small_file_in_each_partition_cannot_be_merged_and_is_no_problem() -> None:
    assert evaluate(load_rules({}), numbers(file_groups=400, small_files=400, partitions=400)) == ()


def test_unknown_numbers_raise_no_problem() -> None:
    assert evaluate(load_rules({}), numbers()) == ()


def test_problems_are_sorted_by_severity() -> None:
    found = evaluate(load_rules({}), facts(error="gone", numbers=TableNumbers(file_groups=200, small_files=200)))
    assert [problem.severity for problem in found] == [Severity.CRITICAL, Severity.INFO]


OWN = """
rules:
  freshness: {above: 6h}
  many_rollbacks:
    measure: rollbacks
    above: 20
    text: "{value} rollbacks are on the timeline, more than {threshold}"
overrides:
  sales:
    freshness: {above: 2h, severity: critical}
    many_rollbacks: {above: 5}
  sales.orders:
    freshness: {above: 30m}
"""


def test_override_of_a_table_wins_over_its_namespace_and_its_rule() -> None:
    rules = parse_rules(OWN, source="alarms.yaml", base=load_rules({}))

    def limit(table: str) -> tuple[float, Severity]:
        (found,) = [rule for rule in rules.of(table) if rule.name == "freshness"]
        return found.above, found.severity

    assert limit("sales.orders") == (1800, Severity.CRITICAL)
    assert limit("sales.items") == (7200, Severity.CRITICAL)
    assert limit("web.clicks") == (21_600, Severity.WARNING)


def test_rule_of_a_user_on_a_number_of_the_table_trips() -> None:
    rules = parse_rules(OWN, source="alarms.yaml", base=load_rules({}))
    (problem,) = evaluate(rules, numbers(rollbacks=6))
    assert problem.text == "6 rollbacks are on the timeline, more than 5"
    assert evaluate(rules, numbers(rollbacks=5)) == ()


def test_disabled_rule_raises_no_problem() -> None:
    rules = parse_rules("overrides:\n  sales: {small_files: {enabled: false}}", source="a.yaml", base=load_rules({}))
    assert evaluate(rules, CASES["small_files"].trips) == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules:\n  freshnes: {above: 1d}", r"a\.yaml:2: no rule 'freshnes'\. Did you mean 'freshness'\?"),
        ("rules:\n  freshness: {abov: 1d}", r"a\.yaml:2: unknown name 'abov' .* Did you mean 'above'\?"),
        ("rules:\n  freshness:\n    above: soon", r"a\.yaml:3: above='soon' is not a duration"),
        ("rules:\n  bad_records: {above: many}", r"above: 'many' is not a number, such as 50%"),
        ("rules:\n  small_files: {above: -1}", r"above: '-1' is not a number of 0 or more"),
        ("rules:\n  x: {measure: freshness_lg}", r"'freshness_lg' is unknown\. Did you mean 'freshness_lag'\?"),
        ("rules:\n  x: {measure: rollbacks, text: '{value} {threshold}'}", r"the rule 'x' needs 'above'"),
        ("rules:\n  freshness: {text: late}", r"text: the text lacks \{value\}"),
        ("rules:\n  freshness: {text: '{valu}'}", r"unknown field \{valu\}\. Did you mean 'value'\?"),
        ("rules:\n  freshness: {text: '{value'}", r"write \{\{ and \}\} for braces"),
        ("rules:\n  freshness: {severity: crit}", r"'crit' is not one of info, warning, critical\. Did you mean"),
        ("rules:\n  freshness: {window: 1d}", r"the measure 'freshness_lag' has no 'window'"),
        ("rules:\n  freshness:", r"a\.yaml:2: the rule 'freshness' is empty"),
        ("overrides:\n  sales:\n    freshnes: {above: 1d}", r"a\.yaml:3: no rule 'freshnes'\. Did you mean"),
        ("overrides:\n  sales:\n    freshness: {measure: rollbacks}", r"unknown name 'measure' in the override"),
        ("rule: {}", r"a\.yaml:1: unknown name 'rule' .* Did you mean 'rules'\?"),
    ],
)
def test_wrong_rule_is_refused_with_line_key_and_nearest_name(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_rules(text, source="a.yaml", base=load_rules({}))


def test_file_of_a_user_is_found_by_its_variable_and_beside_the_specs(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "alarms.yaml").write_text(OWN)
    for environ in (
        {"LAKEHOUSE_ALARMS": str(tmp_path / "alarms.yaml")},
        {"LAKEHOUSE_SPECS": str(tmp_path / "tables")},
    ):
        assert "many_rollbacks" in {rule.name for rule in load_rules(environ).rules}
    with pytest.raises(UserError, match=r"missing\.yaml cannot be read: .*LAKEHOUSE_ALARMS"):
        load_rules({"LAKEHOUSE_ALARMS": str(tmp_path / "missing.yaml")})


def test_actions_name_commands_that_exist() -> None:
    commands = re.compile(r"lakehouse ([a-z]+)(?: ([a-z]+))?")
    found = [match for rule in load_rules({}).rules for match in commands.findall(rule.action)]
    assert len(found) >= len(CASES) - 2
    for noun, verb in found:
        assert noun in NOUNS
        command = program().get_command(click.Context(program()), noun)  # type: ignore[attr-defined]
        is_complete = not isinstance(command, click.Group) or isinstance(command, DefaultGroup)
        assert is_complete or verb in command.commands, f"{noun} {verb}"
