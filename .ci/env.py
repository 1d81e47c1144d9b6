"""Write secrets for docker compose to .env: random values, readable by the owner alone; existing values are kept."""

from __future__ import annotations

import base64
import os
import re
import secrets  # noqa: TID251 -- passwords of a deployment, outside of the package
import sys
import tempfile
from pathlib import Path

_SETTING = re.compile(r"^(\w+)=(.*)$", re.MULTILINE)
_BYTES_OF_FERNET, _BYTES = 32, 24


def main(folder: Path) -> None:
    """Add the names of .env.example that .env lacks or has empty."""
    path = folder / ".env"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    wanted = [name for name, _ in _SETTING.findall((folder / ".env.example").read_text(encoding="utf-8"))]
    known = {name for name, value in _SETTING.findall(text) if value.strip()}
    missing = [name for name in wanted if name not in known]
    if not missing:
        print(f"{path} has all passwords; nothing was changed")
        path.chmod(0o600)
        return
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in missing]
    _replace(path, "".join(f"{line}\n" for line in [*kept, *(f"{name}={_secret(name)}" for name in missing)]))
    print(f"{path}: wrote {', '.join(missing)}; keep this file as long as the volumes, which have these passwords")


def _secret(name: str) -> str:
    if "FERNET" in name:
        return base64.urlsafe_b64encode(secrets.token_bytes(_BYTES_OF_FERNET)).decode()
    # Parts of URLs and of SQL: hexadecimal digits only.
    return secrets.token_hex(_BYTES)


def _replace(path: Path, text: str) -> None:
    """Write the file at once, with mode 0600 from the beginning."""
    descriptor, temporary = tempfile.mkstemp(prefix=".env.", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
