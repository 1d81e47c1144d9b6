"""The FastAPI application: routers, errors, security headers, and the OpenAPI document for logged-in users."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import unquote_plus

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

import lakehouse
from lakehouse_airflow.api import actions, dags, numbers, queue, scopes, static, tables
from lakehouse_airflow.api.access import User
from lakehouse_airflow.api.errors import add_handlers, problem

#: Maximum size of a request body in bytes. The parameters of an action have a lower limit.
LONGEST_BODY = 262_144
PREFIX, VERSION = "/lakehouse", "v1"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}
_ROUTERS = (tables.router, numbers.router, queue.router, dags.router, actions.router, scopes.router)


def build_app() -> FastAPI:
    """Build the application. FastAPI's documentation pages are disabled, because they need no login."""
    app = FastAPI(
        title="Lakehouse API",
        version=lakehouse.__version__,
        description="Tables, services, decisions, alarms and actions of a lakehouse catalog.",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    for router in _ROUTERS:
        app.include_router(router, prefix=f"/api/{VERSION}")
    app.include_router(static.router)
    app.include_router(_document_router(app))
    add_handlers(app)
    app.middleware("http")(_secure)
    return app


def _document_router(app: FastAPI) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    def openapi(user: User) -> JSONResponse:
        """Return the OpenAPI document."""
        del user
        return JSONResponse(app.openapi())

    router.add_api_route(f"/api/{VERSION}/openapi.json", openapi, methods=["GET"])
    return router


async def _secure(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = _refusal(request) or await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "private, no-store")
    return response


def _refusal(request: Request) -> JSONResponse | None:
    """Return an error for a request that no endpoint can serve: its address contains NUL, or its body is too long."""
    if "\0" in request.url.path or "\0" in unquote_plus(request.url.query) or "\0" in request.scope["path"]:
        return problem(400, "invalid_parameter", "the address contains the character NUL (%00); remove it")
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return None
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        return problem(411, "length_required", "a change needs the header Content-Length; send the body in one piece")
    if len(length) > len(str(LONGEST_BODY)) or int(length) > LONGEST_BODY:
        return problem(413, "too_long", f"the body has {length} bytes; an action has at most {LONGEST_BODY}")
    return None
