"""The declaration of one option."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(
    key: str,
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """Declare a field that users set as `key`; `text` is its one sentence.

    The value of a `secret` option is not shown, logged or stored, unless it is a reference (`lakehouse.spec.secrets`).
    """
    # A policy is printed by its fields, for instance in the message of a failed assertion.
    metadata = {"key": key, "text": text, "choices": choices, "aliases": aliases, "secret": secret}
    return field(default=default, repr=not secret, metadata=metadata)
