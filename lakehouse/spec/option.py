"""The declaration of one option."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(key: str, default: Any, text: str, *, choices: tuple[str, ...] = (), aliases: tuple[str, ...] = ()) -> Any:
    """Declare a field that users set as `key`; `text` is its one sentence."""
    return field(default=default, metadata={"key": key, "text": text, "choices": choices, "aliases": aliases})
