"""Parse options: `hoodie.*` and `lakehouse.*` keys with string values become typed policies."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from lakehouse.errors import SettingError, nearest
from lakehouse.spec.options.declarations import declared_keys
from lakehouse.spec.options.policies import Policies

#: Policies are immutable, so all tables without options share these.
_DEFAULTS = Policies()


def parse_options(options: Mapping[str, str], *, also_known: frozenset[str] = frozenset()) -> Policies:
    """Return the policies that `options` describe.

    Pass all options of a table together, because some depend on each other, such as a lock provider and its address.

    Args:
        options: String values by option key.
        also_known: Keys that a different module parses; they are ignored here.

    Raises:
        UserError: A key is not declared, a value does not fit, or values contradict each other.
    """
    if not options:
        return _DEFAULTS
    check_known(options, also_known=also_known)
    return _DEFAULTS.override({k: v for k, v in options.items() if k not in also_known})


def check_known(options: Mapping[str, str], *, also_known: frozenset[str] = frozenset()) -> None:
    """Raise UserError with a similar declared key if a key is not declared. Values are not checked."""
    keys = declared_keys() | also_known
    for key in options:
        if key in keys:
            continue
        # A read has no use for the names of Hudi jobs.
        names = import_module("lakehouse.spec.options.hudi.job_names")
        argument = names.ARGUMENTS.get(names.SAME.get(key, key))
        if argument is not None:
            raise SettingError(
                f"option {key!r} is fixed when a table is created: give {argument}=... to Table.create, or the option "
                "in TBLPROPERTIES of CREATE TABLE or to a DataFrame writer that creates the table",
                setting=key,
            )
        raise SettingError(f"unknown option {key!r}.{nearest(key, keys)} `lakehouse options` lists all.", setting=key)
