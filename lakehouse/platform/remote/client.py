"""Client for the REST API of the pages, with the standard library only.

The command line uses it instead of the database if `LAKEHOUSE_API` is set, so that users need no password of the
catalog. Requests contain the token of an Airflow user; the API checks the permissions of this user.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.pages import (
    ActionPreview,
    ActionRecord,
    ActionResult,
    ActionsPage,
    AlarmsPage,
    DueLine,
    FleetPage,
    FleetRow,
    FleetSummary,
    QueuePage,
    TablePage,
    WhyPage,
)
from lakehouse.spec.contracts.policies import TablePolicies
from lakehouse.spec.secrets import resolve_secret

API, TOKEN = "LAKEHOUSE_API", "LAKEHOUSE_API_TOKEN"
_PREFIX = "lakehouse/api/v1"
_LIMIT_S = 120
_PAGE = 200
DocumentT = TypeVar("DocumentT", bound=Document)


def api_client(environ: Mapping[str, str] | None = None) -> ApiClient | None:
    """Return the client that `LAKEHOUSE_API` and `LAKEHOUSE_API_TOKEN` configure; None if the first is not set.

    Raises UserError for a missing token or a URL that is neither https nor http.
    """
    given = os.environ if environ is None else environ
    url = given.get(API)
    if not url:
        return None
    if not given.get(TOKEN):
        raise UserError(
            f"{API} is set, but {TOKEN} is not: set it to a token of an Airflow user, from POST /auth/token"
        )
    return ApiClient(url=url, token=resolve_secret(given[TOKEN], given, key=TOKEN))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiClient:
    """Calls of the REST API as the user of a token.

    Args:
        url: Base URL of Airflow, such as https://airflow.example.com.
        token: Token of a user.
    """

    url: str
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise UserError(f"{API}={self.url!r} is not a URL: write https://host or http://host:port of Airflow")

    def tables(self, *, search: str = "", namespace: str = "", health: str = "") -> Iterator[FleetRow]:
        """Yield all tables that match, page by page, starting with tables that need attention."""
        filters = {"search": search, "namespace": namespace, "health": health}
        offset, total = 0, 1
        while offset < total:
            page = self._get(FleetPage, "tables", **filters, offset=offset, limit=_PAGE)
            yield from page.rows
            offset, total = offset + _PAGE, page.total

    def summary(self) -> FleetSummary:
        """Return numbers over all tables."""
        return self._get(FleetSummary, "summary")

    def table(self, table: str) -> TablePage:
        """Return the document about a table."""
        return self._get(TablePage, f"tables/{quote(table)}")

    def due(self, *, search: str = "", service: str = "") -> Iterator[DueLine]:
        """Yield the due services in order of urgency."""
        offset, total = 0, 1
        while offset < total:
            filters = {"section": "due", "search": search, "service": service}
            page = self._get(QueuePage, "queue", **filters, offset=offset, limit=_PAGE)
            yield from page.due
            offset, total = offset + _PAGE, page.total

    def decisions(self, table: str, service: str) -> WhyPage:
        """Return the decisions and runs of a service on a table, newest first."""
        return self._get(WhyPage, f"tables/{quote(table)}/services/{quote(service)}/decisions")

    def policies(self, table: str, partition: str | None = None) -> TablePolicies:
        """Return the settings of all services on a table or a partition, with their origins."""
        return self._get(TablePolicies, f"tables/{quote(table)}/policies", partition=partition or "")

    def actions(self, table: str = "", *, limit: int = 50) -> tuple[ActionRecord, ...]:
        """Return at most `limit` of the newest user actions."""
        records: list[ActionRecord] = []
        total = 1
        while len(records) < min(limit, total):
            size = min(limit - len(records), _PAGE)
            page = self._get(ActionsPage, "actions", table=table, offset=len(records), limit=size)
            if not page.actions:
                break
            records += page.actions
            total = page.total
        return tuple(records)

    def preview(self, table: str, action: str, **parameters: Any) -> ActionPreview:
        """Return the effects that an action would have; change nothing."""
        return self._post(ActionPreview, f"tables/{quote(table)}/actions/preview", action, parameters)

    def act(self, table: str, action: str, **parameters: Any) -> ActionRecord:
        """Request an action, and return its record."""
        return self._post(ActionResult, f"tables/{quote(table)}/actions", action, parameters).action

    def act_on_namespace(self, namespace: str, action: str, **parameters: Any) -> ActionRecord:
        """Change the policy of a namespace, and return the record of the action."""
        return self._post(ActionResult, f"namespaces/{quote(namespace)}/actions", action, parameters).action

    def act_on_alarms(self, action: str, **parameters: Any) -> ActionRecord:
        """Silence alarms, or end a silence, and return the record of the action."""
        return self._post(ActionResult, "alarms/actions", action, parameters).action

    def alarms(self, *, search: str = "", resolved: bool = False, limit: int = 50) -> AlarmsPage:
        """Return the open or the newest resolved alarms, and the silences in force."""
        return self._get(AlarmsPage, "alarms", search=search, resolved=resolved or "", limit=limit)

    def _get(self, kind: type[DocumentT], path: str, **query: Any) -> DocumentT:
        given = {name: value for name, value in query.items() if value != ""}
        return kind.from_mapping(self._call(f"{path}?{urlencode(given)}" if given else path))

    def _post(self, kind: type[DocumentT], path: str, action: str, parameters: Mapping[str, Any]) -> DocumentT:
        return kind.from_mapping(self._call(path, {"action": action, "parameters": dict(parameters)}))

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.url.rstrip('/')}/{_PREFIX}/{path}", data=data, headers=headers)
        try:
            with urlopen(request, timeout=_LIMIT_S) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise _refusal(error) from None
        except (URLError, TimeoutError) as error:
            raise RetryableError(f"{self.url}: {error}; check {API}") from error


def _refusal(error: HTTPError) -> LakehouseError:
    """Return the error of a response; its class depends on the status."""
    text = error.read().decode(errors="replace")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {}
    message = answer.get("text") or answer.get("detail") or f"HTTP {error.code}: {text[:200]}"
    if error.code == 401:
        return UserError(f"the token is not accepted: {message}. Set {TOKEN} to a valid one, from POST /auth/token")
    if error.code == 503:
        return RetryableError(str(message))
    return UserError(str(message)) if error.code < 500 else LakehouseError(str(message))
