"""Declare one option as a field of a policy."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from lakehouse.spec.quantities import LARGEST_LONG


# parameters: the parts of a declaration; each policy names the ones that it needs
def option(
    key: str,
    default: Any,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    secret: bool = False,
    most: int = LARGEST_LONG,
    host: bool = False,
) -> Any:
    """Declare a dataclass field that users set by an option key.

    Args:
        key: The option key in the options of a table or a call, such as `hoodie.index.type`.
        default: The value if the key is not set. Its type is the type of the option.
        text: Sentence for the documentation.
        choices: The accepted values, case-insensitive. Empty means any value of the type.
        aliases: Other keys that set the same field.
        secret: The value is not shown, logged or stored, except as a reference (`lakehouse.spec.secrets`).
        most: The maximum, for numeric options.
        host: The value is the address of a server, so it is not accepted from users with the right to edit one service
            only.
    """
    # A failed assertion prints the repr of a policy, so the repr must not contain secrets.
    metadata = {
        "key": key,
        "text": text,
        "choices": choices,
        "aliases": aliases,
        "secret": secret,
        "most": most,
        "host": host,
    }
    return field(default=default, repr=not secret, metadata=metadata)
