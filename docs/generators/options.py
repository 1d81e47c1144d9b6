"""The page of options."""

from __future__ import annotations

from docs.generators.markdown import page
from lakehouse.spec.options.declarations import options_markdown

_INTRO = """\
An option changes how one table, or one call, behaves. Keys of Hudi keep their names; keys of this project begin with
`lakehouse.`. A misspelt key is an error that names the nearest known key.

Options are set in:

- a [table spec](spec-file.md): `options:`, and the settings of `services:` by the names in the second column
- a policy of the catalog, for services: `lakehouse policy set`; see [table services](../services.md#services)
- `options={...}` of `Table.open`, `Table.create` and of each write, or `.option(key, value)` of Spark's format
- `--option key=value` of one command

`lakehouse options` prints the same list."""


def options_page() -> str:
    """Return the page with all options, by policy."""
    return page("Options", "lakehouse/spec/options", _INTRO, options_markdown())
