"""`lakehouse index check | build`: bloom filters of base files; under spark-submit executors read and write them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show_document
from lakehouse.cli.service_job import service_parser
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import UserError, nearest
from lakehouse.spark.session import job_session
from lakehouse.spec.contracts.services import BuiltFilters, FilesWithoutFilter

_VERBS = ("check", "build")


def index_command(words: Sequence[str]) -> int:
    """Run one command about bloom filters."""
    verb = words[1] if len(words) > 1 else ""
    if verb not in _VERBS:
        raise UserError(f"lakehouse index {verb!r} is unknown; verbs are {', '.join(_VERBS)}.{nearest(verb, _VERBS)}")
    given = service_parser(f"index {verb}").parse_args(words[2:])
    spark = job_session(f"lakehouse index {verb} {given.table[:100]}") if "PYSPARK_GATEWAY_PORT" in os.environ else None
    services = open_table(given.table, option_pairs(given.option)).services
    if verb == "check":
        files = services.index.due(spark=spark).files
        show_document(FilesWithoutFilter(count=len(files), files=tuple(files)), given.output)
        return 0
    outcome = services.index.run(spark=spark)
    if isinstance(outcome, NothingToDo):
        result = BuiltFilters(built_files=0, reason=outcome.reason)
    else:
        result = BuiltFilters(built_files=len(outcome.metadata.stats), instant=outcome.instant.requested)
    show_document(result, given.output)
    return 0
