"""The catalog's database in the API server, with a cache of last answers for times when the database is down."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import RetryableError
from lakehouse.platform.catalog.connect import DEFAULT, Database, catalog_url
from lakehouse.spec.contracts.document import Document
from lakehouse_airflow.job_environment import catalog_variables

CLOCK = SystemClock()
_KEPT_ANSWERS = 500
_PSYCOPG3, _PSYCOPG2 = "postgresql+psycopg:", "postgresql+psycopg2:"


class _Opened:
    """The database of this process. It is opened at the first request; after a failure the next request tries again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._database: Database | None = None

    def database(self) -> Database:
        with self._lock:
            if self._database is None:
                environ = {**os.environ, **catalog_variables(os.environ)}
                self._database = Database(_with_driver(catalog_url(DEFAULT, environ)))
            return self._database


class _Answers:
    """Cache of the newest answer to each request, with its time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[int, dict[str, Any]]] = OrderedDict()

    def keep(self, key: str, now_ms: int, content: dict[str, Any]) -> None:
        with self._lock:
            self._kept[key] = now_ms, content
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT_ANSWERS:
                self._kept.popitem(last=False)

    def get(self, key: str) -> tuple[int, dict[str, Any]] | None:
        with self._lock:
            return self._kept.get(key)


_opened, _answers = _Opened(), _Answers()


def database() -> Database:
    """Return the catalog's database.

    Raises UserError if no catalog is configured or its schema is outdated, RetryableError if it does not answer.
    """
    return _opened.database()


@contextmanager
def reading() -> Iterator[Session]:
    """Run a transaction that only reads the catalog."""
    with database().reading() as session:
        yield session


def answer(request: Request, work: Callable[[Session, int], Document]) -> JSONResponse:
    """Return the JSON document that `work` reads from the catalog, with the time of the read.

    If the catalog is down, return the last document of the same request; its field `stale` contains its time and the
    error. All users with read permission get the same documents.
    """
    key, now_ms = f"{request.url.path}?{request.url.query}", CLOCK.now_ms()
    try:
        with reading() as session:
            content = work(session, now_ms).to_mapping()
    except RetryableError as error:
        last = _answers.get(key)
        if last is None:
            raise
        return JSONResponse({**last[1], "stale": {"since_ms": last[0], "text": str(error)}})
    _answers.keep(key, now_ms, content)
    return JSONResponse(content)


def _with_driver(url: str) -> str:
    """Change the URL to an installed driver: Airflow's environment often has only psycopg2 for PostgreSQL."""
    if url.startswith(_PSYCOPG3) and find_spec("psycopg") is None and find_spec("psycopg2") is not None:
        return url.replace(_PSYCOPG3, _PSYCOPG2, 1)
    return url
