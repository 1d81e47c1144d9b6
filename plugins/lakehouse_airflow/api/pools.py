"""Thread pools for blocking requests, separate from the threads of Airflow's own endpoints.

    admitted   the request counts towards the limits of the pool and of its user; above a limit it is refused
    waiting    it waits for a thread of the pool, and occupies no thread of the API server
    running    a thread of the pool does the work

A blocking endpoint is a coroutine that awaits its work in a pool. Slow table reads or a slow catalog therefore do not
occupy Airflow's threads.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar, get_type_hints

from lakehouse.errors import RetryableError

ResultT = TypeVar("ResultT")


class PoolFullError(RetryableError):
    """The pool has reached its maximum number of requests. The client can retry later."""


class UserLimitError(RetryableError):
    """The user has reached the maximum number of requests per user."""


class BoundedPool:
    """Thread pool with limits on threads, waiting requests, and requests per user.

    Args:
        what: Noun for the requests in error messages.
        threads: Maximum number of concurrent requests.
        waiting: Maximum number of waiting requests.
        per_user: Maximum number of running and waiting requests per user.
    """

    def __init__(self, what: str, *, threads: int, waiting: int, per_user: int) -> None:
        self._what, self._most, self._per_user = what, threads + waiting, per_user
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="lakehouse")
        self._lock = threading.Lock()
        self._users = Counter[str]()

    def submit(self, user: str, work: Callable[[], ResultT]) -> Future[ResultT]:
        """Run the work of a user's request in a thread of the pool; return its future.

        The request counts until the work has ended, even if its client has disconnected. Raises PoolFullError or
        UserLimitError if a limit is reached.
        """
        self._admit(user)
        try:
            future = self._executor.submit(work)
        except RuntimeError:
            self._leave(user)
            raise
        future.add_done_callback(lambda _: self._leave(user))
        return future

    def _admit(self, user: str) -> None:
        with self._lock:
            if self._users[user] >= self._per_user:
                raise UserLimitError(
                    f"{self._per_user} {self._what} of {user} are running or waiting, which is the limit per user"
                )
            if self._users.total() >= self._most:
                raise PoolFullError(
                    f"{self._most} {self._what} are running or waiting, which is the limit of the server"
                )
            self._users[user] += 1

    def _leave(self, user: str) -> None:
        with self._lock:
            self._users[user] -= 1
            if not self._users[user]:
                del self._users[user]


#: Pool for requests that read or write the catalog.
CATALOG = BoundedPool("requests to the catalog", threads=8, waiting=56, per_user=24)
#: Pool for table reads. Few processes serve them (`lakehouse_airflow.api.readers`); the other threads wait for a
#: process.
READS = BoundedPool("reads of tables", threads=8, waiting=24, per_user=8)
#: Pool for previews of actions and for policy changes, which start processes. Table reads cannot delay them.
CHANGES = BoundedPool("changes and previews", threads=2, waiting=14, per_user=8)


def in_pool(pool: BoundedPool) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
    """Convert a blocking endpoint to a coroutine that runs in a pool.

    Its parameter `user` is used for the limit per user.
    """

    def decorate(endpoint: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        @wraps(endpoint)
        async def awaited(**parameters: Any) -> Any:
            future = pool.submit(parameters["user"].get_name(), lambda: endpoint(**parameters))
            return await asyncio.wrap_future(future)

        # FastAPI before 0.118, which Airflow 3.1 has, resolves annotations that are strings in the module of this
        # function. Resolved annotations need no module.
        types = get_type_hints(endpoint, include_extras=True)
        signature = inspect.signature(endpoint)
        parameters = [one.replace(annotation=types[name]) for name, one in signature.parameters.items()]
        awaited.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=types.get("return", signature.return_annotation)
        )
        return awaited

    return decorate
