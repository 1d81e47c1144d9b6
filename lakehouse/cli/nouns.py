"""Static table of the command line's nouns, so that `lakehouse --help` imports no command."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.cli.group import Noun
from lakehouse.spec.table.services import SERVICE_SPECS

#: For each section: noun, module below `lakehouse.cli.commands`, and one sentence for the list of commands.
_SECTIONS = {
    "Tables": (
        ("table", "table", "Create, describe, read, delete from and validate tables; compare spec files"),
        ("sql", "sql", "Run SQL statements on the tables of a catalog, or an interactive shell"),
        ("spec", "spec", "Suggest a table spec from a sample of a source, and check a spec"),
        ("timeline", "table", "Show the instants of a table"),
        ("metadata", "metadata", "Show, validate and rebuild the metadata table of a table"),
        ("ingest", "ingest", "Ingest the new files of a spec's source in one commit"),
        ("rollback", "undo", "Roll back one write, or all failed writes"),
        ("savepoint", "undo", "Mark commits that clean and rollback must keep"),
        ("restore", "undo", "Roll back all writes after a savepoint or commit"),
    ),
    "Table services": tuple((spec.name, "service", spec.text) for spec in SERVICE_SPECS),
    "Publication": (("publish", "publish", "Publish ready partitions in a Hive Metastore"),),
    "Catalog": (
        ("services", "services", "Decide which services run now, and explain why"),
        ("alarms", "alarms", "Show and silence alarms of tables, and show their rules"),
        ("policy", "catalog", "Change settings of services for a namespace, a table or some partitions"),
        ("fleet", "fleet", "Find the tables below a place, report the support for each, and register them"),
        ("action", "action", "Run the actions that users request on pages, and list them"),
        ("catalog", "catalog", "Upgrade the database schema of a shared catalog"),
    ),
    "Tools": (
        ("doctor", "doctor", "Check the requirements of a deployment, and suggest corrections"),
        ("environment", "environment", "Pack the Python environment of jobs for the nodes of a cluster"),
        ("options", "options", "List every option with its default"),
        ("completion", "completion", "Print the completion script of a shell"),
    ),
}
NOUNS: Mapping[str, Noun] = {
    name: Noun(module=module, text=text, section=section)
    for section, nouns in _SECTIONS.items()
    for name, module, text in nouns
}
