"""A cache of values that are derived from the columns of a schema."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

import pyarrow as pa

OfSchema = TypeVar("OfSchema", bound=Callable[..., Any])


def cached_by_columns(maxsize: int) -> Callable[[OfSchema], OfSchema]:
    """Return a decorator that caches the results of a function of a schema, or None, and other hashable arguments.

    The function gets the schema without its metadata: before pyarrow 22, a schema with metadata cannot be hashed.
    """

    def decorate(function: OfSchema) -> OfSchema:
        cached = lru_cache(maxsize=maxsize)(function)

        @wraps(function)
        def call(schema: pa.Schema | None, *arguments: Hashable, **options: Hashable) -> Any:
            plain = schema if schema is None else schema.remove_metadata()
            return cached(plain, *arguments, **options)

        return cast(OfSchema, call)

    return decorate
