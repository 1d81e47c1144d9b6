"""Short flags of `lakehouse clustering`: `--partitions`, `--sort-columns` and `--layout` set options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakehouse.errors import UserError
from lakehouse.spec.options.clustering import LAYOUT, PARTITIONS, SORT_COLUMNS

_SHORT = {"--partitions": PARTITIONS, "--sort-columns": SORT_COLUMNS, "--layout": LAYOUT}


def expand_short_flags(words: Sequence[str]) -> Iterator[str]:
    """Yield the words with each short flag, such as `--sort-columns a,b`, as `--option <key>=a,b`."""
    rest = iter(words)
    for word in rest:
        flag, equals, text = word.partition("=")
        if flag not in _SHORT:
            yield word
            continue
        value = text if equals else next(rest, None)
        if not value:
            raise UserError(f"{flag} needs a value", flag=flag)
        yield from ("--option", f"{_SHORT[flag]}={value}")
