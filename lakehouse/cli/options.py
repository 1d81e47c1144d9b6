"""`lakehouse options`: print every option with its default."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lakehouse.spec.options.declarations import declarations, options_markdown


def options_command(words: Sequence[str]) -> int:
    """Print all options, as text or as a Markdown table."""
    parser = argparse.ArgumentParser(prog="lakehouse options")
    parser.add_argument("--markdown", action="store_true", help="print the table of the documentation")
    if parser.parse_args(words[1:]).markdown:
        print(options_markdown())
        return 0
    for declared in declarations():
        print(f"{declared['key']} = {declared['default']}\n    {declared['text']}")
    return 0
