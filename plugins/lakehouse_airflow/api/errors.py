"""Errors of the API: `{"code": ..., "text": ...}` with an HTTP status."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.platform.fleet_views.names import UnknownTableError
from lakehouse.spec.secrets import redact_text
from lakehouse_airflow.api.pools import PoolFullError, UserLimitError

_LATER = {"Retry-After": "5"}
log = logging.getLogger(__name__)
_CODES = {401: "not_logged_in", 403: "forbidden", 404: "not_found", 405: "method_not_allowed", 409: "conflict"}


def problem(status: int, code: str, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the response for an error."""
    return JSONResponse({"code": code, "text": redact_text(text)}, status_code=status, headers=dict(headers or {}))


def add_handlers(app: FastAPI) -> None:
    """Convert all errors of an application to JSON responses."""
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(LakehouseError, _lakehouse)


async def _http(request: Request, error: Any) -> JSONResponse:
    del request
    return problem(error.status_code, _CODES.get(error.status_code, "error"), str(error.detail))


async def _invalid(request: Request, error: Any) -> JSONResponse:
    del request
    parts = [f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['msg']}" for fault in error.errors()]
    return problem(422, "invalid_parameter", "; ".join(parts))


async def _lakehouse(request: Request, error: Any) -> JSONResponse:
    if isinstance(error, UserLimitError):
        return problem(429, "too_many_requests", f"{error}. Try again after one of them has ended", _LATER)
    if isinstance(error, PoolFullError):
        return problem(503, "busy", f"{error}. Try again later", _LATER)
    if isinstance(error, RetryableError):
        return problem(503, "unavailable", f"{error}. Try again; `lakehouse doctor` checks the deployment")
    if isinstance(error, UnknownTableError):
        return problem(404, "unknown_table", str(error))
    if isinstance(error, UserError):
        return problem(400, "refused", str(error))
    log.error("%s: %s", request.url.path, error)
    return problem(500, "failed", str(error))
