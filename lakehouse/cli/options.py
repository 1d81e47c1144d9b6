"""`lakehouse options`: print every option with its default."""

from __future__ import annotations

from lakehouse.cli.group import Given
from lakehouse.cli.output import show
from lakehouse.spec.options.declarations import declarations, options_markdown


def show_options(given: Given) -> None:
    """Print all options, as text, as JSON or as a Markdown table."""
    if given.markdown:
        print(options_markdown())
    elif given.output == "json":
        show([dict(declared) for declared in declarations()], given.output)
    else:
        for declared in declarations():
            print(f"{declared['key']} = {declared['default']}\n    {declared['text']}")
