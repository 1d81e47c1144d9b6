"""Check the arguments of the public methods before anything runs, so that mistakes get clear errors.

`WriteCall` declares the arguments that all write methods take. `checks_arguments` compares the arguments of a call with
the signature of the method: unknown and missing names, and values of another type than annotated. Arguments that take
one string or several are checked by `text_list`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache, wraps
from types import SimpleNamespace, UnionType
from typing import Any, TypedDict, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints, is_typeddict

import pyarrow as pa

from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.rows.keys import is_prefixed
from lakehouse.errors import UserError, nearest
from lakehouse.model.display import one_line, some
from lakehouse.model.instant import Instant

Outcome = Committed | NothingToDo


class WriteCall(TypedDict, total=False):
    """Keyword arguments that all write methods take in addition to the rows.

    `commit_metadata` goes into the commit's extra metadata. `options` are hoodie.* options of this call only.
    `allow_empty` makes a commit even if no row changes, to store its metadata. `precondition` must still hold at the
    commit; otherwise ConflictError is raised and nothing is committed.
    """

    commit_metadata: Mapping[str, str] | None
    options: Mapping[str, str]
    allow_empty: bool
    precondition: Precondition | None


ClassT = TypeVar("ClassT", bound=type)
#: Examples for arguments whose type does not show the expected notation.
_EXAMPLES = {
    "location": "'s3://lake/sales/orders'",
    "where": "\"day = '2026-01-31'\"",
    "as_of": "'2026-01-31 10:00:00'",
    "as_of_event_time": "'2026-01-31T10:00'",
    "event_time": "'2026-01-31T10:00'",
    "begin": "'20260131100000000'",
    "end": "'20260131100000000'",
    "instant": "'20260131100000000'",
    "options": "{'hoodie.parquet.max.file.size': '134217728'}",
    "storage_options": "{'aws_region': 'eu-central-1'}",
    "commit_metadata": "{'source': 'orders.csv'}",
    "schema": "pyarrow.schema({'id': pyarrow.int64()})",
    "cdc": "'DATA_BEFORE_AFTER'",
    "merge_mode": "'EVENT_TIME_ORDERING'",
    "table_type": "'MERGE_ON_READ'",
    "timestamp": "TimestampFormat(...)",
    "max_partitions": "30",
}
_NAMES = {"NoneType": "None", "str": "text", "bool": "True or False", "int": "a whole number", "Mapping": "a mapping"}
_SHOWN = 100


def checks_arguments(kind: ClassT) -> ClassT:
    """Class decorator: public methods, own and inherited ones of this package, check their arguments."""
    package = __name__.rpartition(".")[0]
    bases = [base for base in reversed(kind.__mro__) if base is kind or base.__module__.startswith(package)]
    members = {name: member for base in bases for name, member in vars(base).items()}
    for name, member in members.items():
        if name.startswith("_"):
            continue
        if isinstance(member, classmethod):
            setattr(kind, name, classmethod(_checked(member.__func__, f"{kind.__name__}.{name}")))
        elif inspect.isfunction(member):
            setattr(kind, name, _checked(member, f"{kind.__name__}.{name}"))
    return kind


def check_values(values: Mapping[str, object], hints: Mapping[str, Any], call: str) -> None:
    """Raise UserError for the first value that does not have the type of its hint."""
    for name, value in values.items():
        hint = hints.get(name, Any)
        if not _accepts(hint, value):
            raise UserError(f"{call}: {_mistake(name, value, hint)}", argument=name)


def check_names(names: Iterable[str], arguments: Sequence[str], call: str) -> None:
    """Raise UserError for the first name that is not a known argument of a call."""
    for name in names:
        if name not in arguments:
            raise UserError(
                f"{call}: unknown argument {name!r}.{nearest(name, arguments)} Arguments are {', '.join(arguments)}.",
                argument=name,
            )


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options as strings: numbers and truth values are converted; raise UserError for other values."""
    texts = {}
    for key, value in options.items():
        if not isinstance(value, str | int | float):
            raise UserError(f"option {key}={value!r} is of type {type(value).__name__}; write a string", option=key)
        texts[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return texts


def refuse_keys(keys: object, table: LoadedTable) -> UserError:
    """Return the error for keys of a wrong type, with the key columns, their types and a correct call."""
    config, schema = table.config, table_schema(table)
    types = {} if schema is None else {field.name: field.type for field in schema}
    columns = config.keys.record_key_fields
    described = some([f"{name} ({types[name]})" if name in types else name for name in columns], 5)
    wrong = _first_wrong(keys)
    values = ", ".join(f"'{name}': [{_sample(types.get(name), wrong, len(columns))}]" for name in columns)
    right = f"table.delete(pyarrow.table({{{values}}}))"
    prefix = f"{columns[0]}:" if columns and is_prefixed(config.keys) else ""
    text = f"table.delete(['{prefix}{wrong}']) or " if len(columns) == 1 and isinstance(wrong, int) else ""
    verb = "is" if wrong is keys else "contains"
    return UserError(
        f"keys {verb} {one_line(repr(wrong), _SHOWN)}, which is of type {type(wrong).__name__}; give a string for each "
        f"key, or a table with the key columns. The record key of {config.name} is {described}: {text}{right}",
        argument="keys",
    )


def require_stored_keys(keys: Iterable[str], table: LoadedTable) -> None:
    """Raise UserError for a string that cannot be a record key, because the table stores keys with column names."""
    columns = table.config.keys.record_key_fields
    if not columns or not is_prefixed(table.config.keys):
        return
    for key in keys:
        if key.startswith(f"{columns[0]}:") and all(f",{name}:" in key for name in columns[1:]):
            continue
        form = ",".join(f"{name}:{key if len(columns) == 1 else '...'}" for name in columns)
        values = ", ".join(f"'{name}': [...]" for name in columns)
        raise UserError(
            f"{one_line(repr(key), _SHOWN)} is not a record key of {table.config.name}: with several key or partition "
            f"columns a key contains names. Write {form!r}, or give the values: "
            f"table.delete(pyarrow.table({{{values}}}))",
            argument="keys",
        )


def _first_wrong(keys: object) -> object:
    if isinstance(keys, Collection) and not isinstance(keys, str | bytes | bytearray | Mapping | pa.Array):
        return next((key for key in keys if not isinstance(key, str)), keys)
    return keys


def _sample(kind: pa.DataType | None, wrong: object, columns: int) -> str:
    """Return a value of a key column for the example: the wrong value itself if its type is right."""
    if columns == 1 and isinstance(wrong, int):
        return repr(wrong) if kind is None or pa.types.is_integer(kind) else repr(str(wrong))
    return "1" if kind is not None and pa.types.is_integer(kind) else "'...'"


def _checked(function: Callable[..., Any], call: str) -> Callable[..., Any]:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    named = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]

    @wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        hints, extra, is_open = _hints(function)
        if not is_open:
            check_names(keywords, [*named, *extra], call)
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise UserError(f"{call}: {error}; arguments are {', '.join([*named, *extra])}") from error
        given = dict(list(bound.arguments.items())[1:])
        check_values({name: value for name, value in given.items() if name in named}, hints, call)
        check_values({name: value for name, value in keywords.items() if name in extra}, extra, call)
        return function(*arguments, **keywords)

    return checked


@lru_cache(maxsize=256)
def _hints(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Return the types of parameters and TypedDict arguments, and whether other arguments are allowed."""
    # The type of the result is not checked, and its module may be imported only when the method runs.
    parameters = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    hints = get_type_hints(SimpleNamespace(__annotations__=parameters), function.__globals__)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            hint = hints.get(parameter.name)
            if get_origin(hint) is Unpack and is_typeddict(get_args(hint)[0]):
                return hints, get_type_hints(get_args(hint)[0]), False
            return hints, {}, True
    return hints, {}, False


def _accepts(hint: Any, value: object) -> bool:
    """Return whether a value has the type of a hint.

    Collections of strings are accepted here and checked by `text_list`.
    """
    if hint is Any or isinstance(hint, TypeVar):
        return True
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if any(get_origin(part) in (Sequence, Collection, Iterable) for part in parts):
            return True
        return any(_accepts(part, value) for part in parts)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    kind = origin or hint
    if kind is bool:
        return isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return isinstance(value, kind)


def _mistake(name: str, value: object, hint: Any) -> str:
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    names = [getattr(get_origin(part) or part, "__name__", str(part)) for part in parts]
    expected = " or ".join(_NAMES.get(part, part) for part in names if part != "NoneType")
    example = f", such as {name}={_EXAMPLES[name]}" if name in _EXAMPLES else ""
    return (
        f"{name}={one_line(repr(value), _SHOWN)} is of type {type(value).__name__}; give {expected}{example}"
        f"{_conversion(name, value)}"
    )


def _conversion(name: str, value: object) -> str:
    """Return a conversion hint for types that users often pass by mistake."""
    if isinstance(value, Instant):
        return f". Write {name}=instant.{'completion' if name in ('begin', 'end') else 'requested'}"
    if isinstance(value, datetime | date):
        return f". Write {name}={value.isoformat(sep=' ') if isinstance(value, datetime) else value.isoformat()!r}"
    if isinstance(value, pa.Table | pa.RecordBatch) and name == "schema":
        return ". Write schema=rows.schema"
    return ""
