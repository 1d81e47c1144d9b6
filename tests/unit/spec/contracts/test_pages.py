"""Round trips of the documents of pages and of the REST API."""

from __future__ import annotations

import json

import pytest

from lakehouse.errors import UserError
from lakehouse.spec.actions import ACTION_NAMES, action_spec, check_parameters, command_words
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.inspection import (
    FileGroupInfo,
    InstantDetail,
    SizeBucket,
    TableFiles,
    TimelineBars,
)
from lakehouse.spec.contracts.pages import (
    ActionPreview,
    ActionRecord,
    ActionResult,
    ActionsPage,
    AlarmLine,
    AlarmsPage,
    DecisionRecord,
    DueLine,
    FleetHealth,
    FleetPage,
    FleetRow,
    FleetSummary,
    GrowthPoint,
    QueuePage,
    QueueSection,
    RunRecord,
    RunSummary,
    ServiceLine,
    SilenceLine,
    SpecChange,
    TablePage,
    TableProblem,
    TableRuns,
    WhyPage,
)

PROBLEM = TableProblem(rule="freshness_lag", severity=3, text="late", value=14.0, threshold=1.0)
ROW = FleetRow(
    table="a.b",
    location="/a/b",
    health=FleetHealth.ATTENTION,
    severity=3,
    problems=(PROBLEM,),
    numbers={"base_bytes": 1},
    last_run=RunSummary(service="clean", state="committed", started_ms=5),
    history=(1, 2),
)
DECISION = DecisionRecord(decided_ms=1, due=True, chosen=False, code="run_limit", reason="full", inputs={"n": 1})
RUN = RunRecord(table="a.b", service="clean", run="r", state="running", tries=1, started_ms=1, progress={"done": 1})
ACTION = ActionRecord(
    id=1, table="a.b", action="rollback", parameters={"instant": "1"}, author="ada", created_ms=1, state="done"
)
ALARM = AlarmLine(id=1, rule="r", table="a.b", severity=2, state="open", text="t", raised_ms=1, seen_ms=2)
DOCUMENTS = (
    FleetPage(now_ms=1, total=1, offset=0, rows=(ROW,), namespaces=("a",)),
    FleetSummary(now_ms=1, tables=1, attention=1, running=0, due=0),
    TablePage(
        now_ms=1,
        row=ROW,
        spec={"table": "a.b"},
        specs=(SpecChange(spec_version=1, author="ada", source="", created_ms=1),),
        services=(ServiceLine(service="clean", enabled=True, decision=DECISION, run=RUN),),
        points=(GrowthPoint(hour_ms=1, numbers={"base_bytes": 1}),),
    ),
    WhyPage(
        now_ms=1, table="a.b", service="clean", decisions=(DECISION,), runs=(RUN,), requests=({}, {"partitions": ["x"]})
    ),
    TableRuns(now_ms=1, table="a.b", runs=(RUN,)),
    QueuePage(
        now_ms=1,
        section=QueueSection.DUE,
        total=1,
        offset=0,
        due=(DueLine(table="a.b", service="clean", decision=DECISION),),
    ),
    AlarmsPage(
        now_ms=1,
        total=1,
        offset=0,
        alarms=(ALARM,),
        silences=(SilenceLine(id=1, rule="", scope="a", until_ms=9, reason="move", author="ada"),),
    ),
    ActionsPage(now_ms=1, total=1, offset=0, actions=(ACTION,)),
    ActionPreview(table="a.b", action="rollback", effects=("x",), facts={"files": []}),
    ActionResult(action=ACTION),
    TimelineBars(table="b", now_ms=1, instants=("1",), actions=("commit",), states=("inflight",), end_ms=(None,)),
    InstantDetail(table="b", instant="1", action="commit", state="completed", files=({"path": "x"},)),
    TableFiles(
        table="b",
        total=1,
        offset=0,
        target_bytes=2,
        small_bytes=1,
        groups=(FileGroupInfo(partition="", file_group="f", base_instant="1", base_bytes=1, log_bytes=0, log_files=0),),
        histogram=(SizeBucket(up_to_bytes=None, files=1, bytes=1),),
    ),
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: type(document).__name__)
def test_document_is_equal_after_a_round_trip(document: Document) -> None:
    assert type(document).from_json(document.to_json()) == document
    assert set(json.loads(document.to_json())) >= {"version"}


@pytest.mark.parametrize("name", ACTION_NAMES)
def test_every_action_has_a_command_with_each_of_its_parameters(name: str) -> None:
    spec = action_spec(name)
    given = {"partitions": ["p"], "settings": {"enabled": False}}
    parameters = {part: given.get(part, "compaction") for part in (*spec.required, *spec.optional)}
    check_parameters(spec, parameters)
    words = command_words(spec.command, "a.b", parameters)
    if spec.command:
        assert "--table=a.b" in words
        assert len([word for word in words if "=" in word]) >= 1 + len(parameters)


def test_command_of_an_action_leaves_out_flags_without_value_and_hides_no_flag_in_a_value() -> None:
    words = command_words(action_spec("savepoint").command, "a.b", {"comment": "--user=root"})
    assert words == ["savepoint", "create", "--table=a.b", "--comment=--user=root", "--output", "json"]


@pytest.mark.parametrize(
    ("action", "parameters", "message"),
    [
        ("rolback", {}, "rollback"),
        ("rollback", {}, "'instant' is missing"),
        ("rollback", {"instant": "1", "table": "x"}, "unknown parameter 'table'"),
        ("publish", {"partitions": "p"}, "not a list of partitions"),
        ("request_service", {"service": "compation"}, "compaction"),
    ],
)
def test_wrong_action_is_refused_with_the_reason(action: str, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_parameters(action_spec(action), parameters)


def test_action_on_a_policy_takes_all_services_and_a_request_does_not() -> None:
    check_parameters(action_spec("edit_policy"), {"service": "all", "settings": {"max_runs": 3}})
    with pytest.raises(UserError, match="unknown service 'all'"):
        check_parameters(action_spec("request_service"), {"service": "all"})
