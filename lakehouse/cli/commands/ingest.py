"""`lakehouse ingest`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import job_flags

_TEXT = """Ingest the new files of the spec's source into its table, in one commit; a missing table is created.

With `mode: upsert` a row replaces the stored one of its record key in the same partition. A record key is unique in
each partition, as in Hudi: a row whose partition column changed becomes a second row, unless the spec declares a
global index (`index: global_simple`) or no partitions. `lakehouse table validate --keys global` finds such keys.
"""

_STREAM = """Ingest continuously: one commit every minute, in one long-lived job.

Each commit is that of `ingest run`, and the next one continues from its checkpoint, so a stream that is killed loses
and repeats nothing. After a commit that left records behind, because of the limits of the spec, the next one follows
at once. At most one stream writes to a table. SIGTERM and Ctrl-C end the stream after the commit that is under way.
"""
_ONCE = ("--interval-start", "--interval-end", "--full-refresh")

COMMANDS: dict[str, click.Command] = {
    "ingest": Group(
        "ingest",
        "Ingest the new files of a spec's source in one commit.",
        [
            Command(
                "run",
                "ingest:ingest",
                _TEXT,
                job_flags(without=("--partition", "--instant", "--force", "--every", "--run-for")),
                examples=(
                    "lakehouse ingest run --table orders.yaml",
                    "lakehouse ingest run --table orders.yaml --interval-start 2026-01-01 --interval-end 2026-01-02",
                ),
                noun="ingest",
                verb="run",
            ),
            Command(
                "stream",
                "ingest:stream",
                _STREAM,
                job_flags(without=("--partition", "--instant", "--force", *_ONCE)),
                examples=(
                    "lakehouse ingest stream --table orders.yaml",
                    "lakehouse ingest stream --table orders.yaml --every 30s --run-for 1h",
                ),
                noun="ingest",
                verb="stream",
            ),
        ],
    )
}
