"""`lakehouse compaction due | plan | run` and `lakehouse logcompaction plan | run`.

`due` and `plan` work without Spark. `run` is a job: under spark-submit its work runs on Spark, else in threads here.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lakehouse.cli.output import show
from lakehouse.cli.table import open_table
from lakehouse.errors import UserError, nearest
from lakehouse.jobs import describe, run_job
from lakehouse.operations.results import Committed, NothingToDo
from lakehouse.spark.session import job_session
from lakehouse.spec.job import JobCommand, JobReport, JobStatus

logger = logging.getLogger(__name__)
_VERBS = {"compaction": ("due", "plan", "run"), "logcompaction": ("plan", "run")}


def compaction_command(words: Sequence[str]) -> int:
    """Run one command of this room."""
    noun, verb = words[0], words[1] if len(words) > 1 else ""
    if verb not in _VERBS[noun]:
        known = ", ".join(_VERBS[noun])
        raise UserError(f"lakehouse {noun} {verb!r} is unknown; verbs are {known}.{nearest(verb, _VERBS[noun])}")
    if verb == "run":
        return run_job(JobCommand.from_argv(words), _run)
    return _due(words[2:]) if verb == "due" else _plan(noun, words[2:])


def _due(words: Sequence[str]) -> int:
    given = _parser("compaction due").parse_args(words)
    show(asdict(open_table(given.table, _pairs(given.option)).services.compaction_due()), given.output)
    return 0


def _plan(noun: str, words: Sequence[str]) -> int:
    parser = _parser(f"{noun} plan")
    parser.add_argument("--force", action="store_true", help="plan even if none is due")
    parser.add_argument("--dry-run", action="store_true", help="print what would be planned now; write nothing")
    given = parser.parse_args(words)
    services = open_table(given.table, _pairs(given.option)).services
    logs_only = noun == "logcompaction"
    if given.dry_run:
        proposed = services.propose_compaction(logs_only=logs_only)
        operations = proposed.operations if proposed is not None else ()
        show([_operation(asdict(operation)) for operation in operations], given.output)
        return 0
    planned = services.plan_compaction(force=given.force, logs_only=logs_only)
    if isinstance(planned, NothingToDo):
        show({"planned": None, "reason": planned.reason}, given.output)
    else:
        show({"planned": planned.requested, "action": str(planned.action)}, given.output)
    return 0


def _operation(fields: Mapping[str, Any]) -> dict[str, Any]:
    metrics = {name: round(value, 3) for name, value in fields["metrics"].items()}
    return {
        "partition": fields["partition"] or "(root)",
        "file group": fields["file_id"],
        "base file": fields["data_file"],
        "log files": len(fields["log_files"]),
        **metrics,
    }


def _run(command: JobCommand) -> JobReport:
    started = time.perf_counter()
    table = open_table(command.table, command.options)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    spark = job_session(f"lakehouse {command.verb} {table.name}") if submitted else None
    run = table.services.log_compaction if command.verb == "logcompaction" else table.services.compaction
    outcome = run(instant=command.instant, force=command.force, spark=spark)
    report = _report(table.name, outcome, time.perf_counter() - started)
    print(describe(report))
    return report


def _report(table: str, outcome: Committed | NothingToDo, seconds: float) -> JobReport:
    if isinstance(outcome, NothingToDo):
        logger.info("table %s: nothing to do: %s", table, outcome.reason)
        return JobReport(status=JobStatus.NOTHING_TO_DO, table=table, seconds=seconds)
    stats = outcome.metadata.stats
    return JobReport(
        status=JobStatus.COMMITTED,
        table=table,
        instant=outcome.instant.requested,
        rows=sum(stat.num_writes for stat in stats),
        inserts=sum(stat.num_inserts for stat in stats),
        updates=sum(stat.num_updates for stat in stats),
        deletes=sum(stat.num_deletes for stat in stats),
        files=len(stats),
        bytes=sum(stat.size_bytes for stat in stats),
        seconds=seconds,
    )


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"lakehouse {command}")
    parser.add_argument("--table", required=True, help="a table spec (YAML), or a table's location")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="hoodie.* option")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def _pairs(options: Sequence[str]) -> dict[str, str]:
    pairs = dict(option.partition("=")[::2] for option in options)
    wrong = next((option for option in options if "=" not in option), None)
    if wrong is not None:
        raise UserError(f"--option {wrong}: expected key=value")
    return pairs
