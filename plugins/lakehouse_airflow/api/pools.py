"""Threads for blocking work of requests, apart from the threads that Airflow's API server has for its own endpoints.

    admitted   the request counts against the limits of the pool and of its user; beyond them it is refused
    waiting    it waits for a thread of the pool, and holds none of the API server meanwhile
    running    a thread of the pool does the work

An endpoint that blocks is a coroutine that awaits its work here, so that slow reads of tables or a slow catalog leave
Airflow's threads free.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

from lakehouse.errors import RetryableError

ResultT = TypeVar("ResultT")


class PoolFullError(RetryableError):
    """The pool has as many requests as it may; the request can be sent again later."""


class UserLimitError(RetryableError):
    """The user has as many requests in the pool as one user may."""


class BoundedPool:
    """A bounded number of threads, of waiting requests, and of requests per user.

    Args:
        what: What the requests are, for errors.
        threads: Requests that run at the same time.
        waiting: Requests that wait at most.
        per_user: Requests of one user that run or wait.
    """

    def __init__(self, what: str, *, threads: int, waiting: int, per_user: int) -> None:
        self._what, self._most, self._per_user = what, threads + waiting, per_user
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="lakehouse")
        self._lock = threading.Lock()
        self._users = Counter[str]()

    def submit(self, user: str, work: Callable[[], ResultT]) -> Future[ResultT]:
        """Let a thread of the pool do the work of a user's request; return its future.

        The request counts until the work has ended, even if its client has gone away. Raises PoolFullError or
        UserLimitError if it is one too many.
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
                    f"{self._per_user} {self._what} of {user} are running or waiting, as many as one user may have"
                )
            if self._users.total() >= self._most:
                raise PoolFullError(f"{self._most} {self._what} are running or waiting, as many as the server accepts")
            self._users[user] += 1

    def _leave(self, user: str) -> None:
        with self._lock:
            self._users[user] -= 1
            if not self._users[user]:
                del self._users[user]


#: Requests that read and write the catalog.
CATALOG = BoundedPool("requests to the catalog", threads=8, waiting=56, per_user=24)
#: Reads of tables. Few processes serve them (`lakehouse_airflow.api.readers`); the other threads wait for one of these.
READS = BoundedPool("reads of tables", threads=8, waiting=24, per_user=8)
#: Previews of actions and changes of policies, which are processes; users that only read cannot delay them.
CHANGES = BoundedPool("changes and previews", threads=2, waiting=14, per_user=8)


def in_pool(pool: BoundedPool) -> Callable[[Callable[..., Any]], Callable[..., Awaitable[Any]]]:
    """Make an endpoint that blocks a coroutine that does its work in a pool. Its parameter `user` is counted."""

    def decorate(endpoint: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        @wraps(endpoint)
        async def awaited(**parameters: Any) -> Any:
            future = pool.submit(parameters["user"].get_name(), lambda: endpoint(**parameters))
            return await asyncio.wrap_future(future)

        return awaited

    return decorate
