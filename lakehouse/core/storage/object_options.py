"""Locations and options of object stores, translated to the names of obstore.

Options come from users and from Spark's configuration; the names of both are accepted:

    fs.s3a.access.key                 AWS_ACCESS_KEY_ID          fs.s3a.endpoint           AWS_ENDPOINT_URL
    fs.s3a.secret.key                 AWS_SECRET_ACCESS_KEY      fs.s3a.endpoint.region    AWS_REGION
    fs.s3a.session.token              AWS_SESSION_TOKEN          fs.s3a.attempts.maximum   max_attempts
    fs.s3a.connection.ssl.enabled     allow_http                 fs.s3a.aws.credentials.provider (Anonymous...)

The prefix `spark.hadoop.` is allowed. `AWS_*`, `GOOGLE_*` and `AZURE_*` are obstore's own names, in any case; options
that are not set are read from the environment. Other `fs.*` options are for Hadoop and are ignored. Requests are path
style unless AWS_VIRTUAL_HOSTED_STYLE_REQUEST is set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from lakehouse.errors import UserError, nearest

DEFAULT_ATTEMPTS = 6

_HADOOP = {
    "fs.s3a.access.key": "aws_access_key_id",
    "fs.s3a.secret.key": "aws_secret_access_key",
    "fs.s3a.session.token": "aws_session_token",
    "fs.s3a.endpoint": "aws_endpoint_url",
    "fs.s3a.endpoint.region": "aws_region",
    "fs.s3a.connection.ssl.enabled": "ssl_enabled",
    "fs.s3a.attempts.maximum": "max_attempts",
    "fs.s3a.aws.credentials.provider": "credentials_provider",
    "fs.gs.auth.service.account.json.keyfile": "google_service_account",
}
#: Settings of Hadoop; those that are not translated have no effect here.
_HADOOPS = ("fs.", "dfs.", "hadoop.")
_OURS = ("allow_http", "max_attempts")
_FAMILIES = {"s3": "aws_", "gs": "google_", "az": "azure_"}
_ENDPOINTS = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint")
_AZURE_KEY = re.compile(r"fs\.azure\.account\.key\.([^.]+)\..*")
_AZURE_HOST = re.compile(r"([^@/]+)@([^./]+)\.(?:dfs|blob)\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLocation:
    """A bucket (Azure: a container) and the prefix of a store in it."""

    scheme: str
    bucket: str
    prefix: str
    account: str | None = None
    domain: str = "core.windows.net"

    @property
    def root(self) -> str:
        """The location as users write it."""
        if self.account:
            bucket = f"abfss://{self.bucket}@{self.account}.dfs.{self.domain}"
        else:
            bucket = f"{self.scheme}://{self.bucket}"
        return f"{bucket}/{self.prefix}" if self.prefix else bucket

    @property
    def native_root(self) -> str:
        """The location for Spark's file systems."""
        return "s3a" + self.root[2:] if self.scheme == "s3" else self.root


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions:
    """Options of a store: obstore's configuration, whether plain HTTP is allowed, the number of attempts."""

    config: dict[str, str]
    allow_http: bool
    attempts: int


def parse_object_location(scheme: str, location: str) -> ObjectLocation:
    """Split `scheme://bucket/prefix` (or `abfss://container@account.dfs.core.windows.net/prefix`)."""
    bucket, _, prefix = location.partition("://")[2].partition("/")
    prefix = prefix.strip("/")
    if not bucket:
        raise UserError(f"location {location!r} names no bucket; write {scheme}://bucket/path", location=location)
    if "//" in prefix or any(segment in (".", "..") for segment in prefix.split("/")):
        raise UserError(f"location {location!r} must not contain '//', '.' or '..' in its path", location=location)
    if scheme != "az" or "@" not in bucket:
        return ObjectLocation(scheme=scheme, bucket=bucket, prefix=prefix)
    match = _AZURE_HOST.fullmatch(bucket)
    if match is None:
        raise UserError(
            f"location {location!r} is not abfss://container@account.dfs.core.windows.net/path", location=location
        )
    return ObjectLocation(scheme="az", bucket=match[1], prefix=prefix, account=match[2], domain=match[3])


def object_options(location: ObjectLocation, options: Mapping[str, str]) -> ObjectOptions:
    """Translate the options of one location; raise UserError for an unknown name."""
    family = _FAMILIES[location.scheme]
    config: dict[str, str] = {}
    settings: dict[str, str] = {}
    for name, value in options.items():
        option = _translated(name, location)
        if option is None:
            continue
        if option.startswith(family):
            config[option] = str(value)
        elif option.partition("_")[0] + "_" not in _FAMILIES.values():
            settings[option] = str(value)
    if location.account:
        config.setdefault("azure_storage_account_name", location.account)
    if "Anonymous" in settings.get("credentials_provider", "") and location.scheme == "s3":
        config.setdefault("aws_skip_signature", "true")
    plain = _is_true(settings.get("allow_http", "false")) or settings.get("ssl_enabled", "").lower() == "false"
    for name in _ENDPOINTS if location.scheme == "s3" else ():
        endpoint = config.get(name) or os.environ.get(name.upper())
        if endpoint and "://" not in endpoint:
            config[name] = endpoint = f"{'http' if plain else 'https'}://{endpoint}"
        # An endpoint with http:// allows plain HTTP.
        plain = plain or (endpoint or "").startswith("http://")
    return ObjectOptions(config=config, allow_http=plain, attempts=_attempts(settings.get("max_attempts")))


def _translated(name: str, location: ObjectLocation) -> str | None:
    """Return the name of an option in obstore or in this package; None if only Hadoop uses it."""
    plain = name.removeprefix("spark.hadoop.")
    if plain in _HADOOP:
        return _HADOOP[plain]
    if match := _AZURE_KEY.fullmatch(plain):
        return "azure_storage_account_key" if match[1] == location.account else None
    lower = plain.lower()
    if plain.startswith(_HADOOPS):
        return None
    if lower in _OURS or lower.startswith(tuple(_FAMILIES.values())):
        return lower
    names = [*_HADOOP, *_OURS, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"]
    raise UserError(
        f"unknown storage option {name!r}.{nearest(name, names)} "
        "Known are fs.*, AWS_*, GOOGLE_*, AZURE_*, allow_http and max_attempts.",
        option=name,
    )


def _attempts(text: str | None) -> int:
    if text is None:
        return DEFAULT_ATTEMPTS
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"storage option max_attempts must be a whole number from 1, not {text!r}", value=text)
    return int(text)


def _is_true(text: str) -> bool:
    return text.strip().lower() in ("true", "1", "yes")
