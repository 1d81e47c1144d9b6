"""Arguments that several commands take. The list of processes shows all of them to every user of the host."""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.errors import UserError
from lakehouse.spec.secrets import redact_text, refuse_secret_url, refuse_secrets


def option_pairs(options: Sequence[str]) -> dict[str, str]:
    """Return what `--option key=value` said; raise UserError for one that says neither, and for one with a secret."""
    pairs = dict(option.partition("=")[::2] for option in options)
    wrong = next((option for option in options if "=" not in option), None)
    if wrong is not None:
        raise UserError(f"--option {redact_text(wrong)}: expected key=value")
    refuse_secrets(pairs, "--option")
    return pairs


def catalog_argument(text: str) -> str:
    """Return what `--catalog` says, a name or a URL; raise UserError for a URL with a password."""
    if "://" in text:
        refuse_secret_url(text, "--catalog", "Set LAKEHOUSE_CATALOG_<NAME> to it, and give --catalog <name>.")
    return text
