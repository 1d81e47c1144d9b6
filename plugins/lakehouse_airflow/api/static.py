"""Serves the JavaScript modules of the pages from the package data. The URL contains the hash of all modules."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from lakehouse_airflow.api.access import User
from lakehouse_airflow.page_list import digest, page_modules

router = APIRouter(include_in_schema=False)
#: A new release has a different URL, so browsers may cache a module without revalidation.
_CACHE = "private, max-age=31536000, immutable"


@router.get("/pages/{version}/{name}")
def page_module(version: str, name: str, request: Request, user: User) -> Any:
    """Return a module.

    For the URL of an old version, return the current module, which must not be cached under that URL.
    """
    del user
    content = page_modules().get(name)
    if content is None:
        raise HTTPException(404, f"there is no page module {name!r}; modules are {', '.join(sorted(page_modules()))}")
    tag = f'"{digest()}"'
    headers = {"ETag": tag, "Cache-Control": _CACHE if version == digest() else "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    kind = "image/svg+xml" if name.endswith(".svg") else "text/javascript; charset=utf-8"
    return Response(content, media_type=kind, headers=headers)
