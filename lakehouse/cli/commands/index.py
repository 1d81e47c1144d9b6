"""The verbs of `lakehouse index` that other services do not have: `list`, `create`, `drop` and `filters`."""

from __future__ import annotations

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import flag, options, output, table, value

LIST = Command(
    "list",
    "index:list_indexes",
    "List the indexes of a table: the one by which writers find record keys, and those of the metadata table, with "
    "state, columns and size.",
    [table(), options(), output()],
    examples=("lakehouse index list --table sales.orders",),
)
CREATE = Command(
    "create",
    "index:create",
    "Declare a secondary index of a column, or an index on an expression, and build it.",
    [
        table(),
        value("--column", "Column of a secondary index.", default="", metavar="COLUMN"),
        value("--name", "Name of the secondary index. Default: the column.", default="", metavar="NAME"),
        value(
            "--expression",
            "Index on an expression, such as `by_hour=hour(at)`, `by_day=from_unixtime(ts, yyyy-MM-dd)` or "
            "`by_name=bloom_filters:upper(name)`.",
            default="",
            metavar="NAME=FUNCTION(COLUMN)",
        ),
        flag("--defer", "Leave the build to the next run of the service."),
        options(),
        output(),
    ],
    examples=(
        "lakehouse index create --table sales.orders --column city",
        "lakehouse index create --table sales.orders --column city --name by_city --defer",
        "lakehouse index create --table sales.orders --expression 'by_hour=hour(at)'",
    ),
)
DROP = Command(
    "drop",
    "index:drop",
    "Drop an index, built or being built: first the properties name it no more, then its files are deleted.",
    [
        table(),
        value(
            "--index", "Name of the index, or of its partition of the metadata table.", required=True, metavar="NAME"
        ),
        options(),
        output(),
    ],
    examples=("lakehouse index drop --table sales.orders --index city",),
)

FILTERS = Group(
    "filters",
    "Check and build the bloom filters in the footers of base files.",
    [
        Command(
            "check",
            "filters:check",
            "List the base files without a bloom filter; nothing is written.",
            [table(), options(), output()],
            examples=("lakehouse index filters check --table sales.orders",),
        ),
        Command(
            "build",
            "filters:build",
            "Add missing bloom filters to base files, in one commit.",
            [table(), options(), output()],
            examples=("lakehouse index filters build --table sales.orders",),
        ),
    ],
)
