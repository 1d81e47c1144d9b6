"""Result of `lakehouse environment pack`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.spec.contracts.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedEnvironment(Document):
    """An archive of a Python environment for the nodes of a cluster.

    Attributes:
        archive: Path of the archive.
        bytes: Size of the archive.
        digest: Digest of its files; a changed environment has another digest.
        python: Version of its Python, such as 3.11.
        lakehouse: Version of its lakehouse.
        settings: Settings of Spark for a driver that runs on this host, in client mode.
    """

    archive: str
    bytes: int
    digest: str
    python: str
    lakehouse: str
    settings: Mapping[str, str] = field(default_factory=dict)
