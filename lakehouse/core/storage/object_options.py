"""Locations and options of object stores, translated to the names of obstore.

Options come from users and from Spark's configuration; the names of both are accepted:

    fs.s3a.access.key                 AWS_ACCESS_KEY_ID          fs.s3a.endpoint           AWS_ENDPOINT_URL
    fs.s3a.secret.key                 AWS_SECRET_ACCESS_KEY      fs.s3a.endpoint.region    AWS_REGION
    fs.s3a.session.token              AWS_SESSION_TOKEN          fs.s3a.attempts.maximum   max_attempts
    fs.s3a.connection.ssl.enabled     allow_http                 fs.s3a.aws.credentials.provider (Anonymous...)

Stores with the interface of S3 have schemes and options of their own, as their Hadoop connectors do:

    oss://bucket      fs.oss.endpoint, fs.oss.accessKeyId, fs.oss.accessKeySecret, fs.oss.securityToken
    cosn://bucket     fs.cosn.bucket.region or .endpoint_suffix, fs.cosn.userinfo.secretId, .secretKey, .sessionToken
    obs://bucket      fs.obs.endpoint, fs.obs.access.key, fs.obs.secret.key, fs.obs.session.token

They get virtual-hosted requests, and no conditional puts (`ObjectOptions.conditional`) unless AWS_CONDITIONAL_PUT=etag
is set: OSS refuses them with status 501, and for the others no documentation promises them.

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
    "fs.oss.endpoint": "oss_endpoint",
    "fs.oss.accessKeyId": "oss_access_key_id",
    "fs.oss.accessKeySecret": "oss_secret_access_key",
    "fs.oss.securityToken": "oss_session_token",
    "fs.cosn.bucket.region": "cosn_region",
    "fs.cosn.userinfo.region": "cosn_region",
    "fs.cosn.bucket.endpoint_suffix": "cosn_endpoint",
    "fs.cosn.userinfo.secretId": "cosn_access_key_id",
    "fs.cosn.userinfo.secretKey": "cosn_secret_access_key",
    "fs.cosn.userinfo.sessionToken": "cosn_session_token",
    "fs.obs.endpoint": "obs_endpoint",
    "fs.obs.access.key": "obs_access_key_id",
    "fs.obs.secret.key": "obs_secret_access_key",
    "fs.obs.session.token": "obs_session_token",
    "fs.gs.auth.service.account.json.keyfile": "google_service_account",
}
#: Settings of Hadoop; those that are not translated have no effect here.
_HADOOPS = ("fs.", "dfs.", "hadoop.")
_OURS = ("allow_http", "max_attempts")
_FAMILIES = {"s3": "aws_", "gs": "google_", "az": "azure_"}
_CONDITIONAL = "aws_conditional_put"
_ENDPOINTS = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint")
_R2 = ".r2.cloudflarestorage.com"
_AZURE_KEY = re.compile(r"fs\.azure\.account\.key\.([^.]+)\..*")
_AZURE_HOST = re.compile(r"([^@/]+)@([^./]+)\.(?:dfs|blob)\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """A store with the interface of S3 and a scheme of its own.

    Attributes:
        endpoint: Pattern of its endpoints; the group is the region.
        from_region: Endpoint of a region.
        create_header: Header of a put that refuses an existing object.
    """

    endpoint: re.Pattern[str]
    from_region: str
    create_header: str


RELATIVES = {
    "oss": Relative(
        endpoint=re.compile(r"(?:s3\.)?oss-([a-z0-9-]+?)(?:-internal)?\.aliyuncs\.com"),
        from_region="oss-{}.aliyuncs.com",
        create_header="x-oss-forbid-overwrite",
    ),
    "cosn": Relative(
        endpoint=re.compile(r"cos(?:-internal)?\.([a-z0-9-]+)\.(?:myqcloud\.com|tencentcos\.cn)"),
        from_region="cos.{}.myqcloud.com",
        create_header="x-cos-forbid-overwrite",
    ),
    "obs": Relative(
        endpoint=re.compile(r"obs\.([a-z0-9-]+)\.myhuaweicloud\.(?:com|eu)"),
        from_region="obs.{}.myhuaweicloud.com",
        create_header="",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLocation:
    """A bucket (Azure: a container) and the prefix of a store in it.

    `relative` is the scheme of a store in RELATIVES, whose `scheme` is then `s3`.
    """

    scheme: str
    bucket: str
    prefix: str
    account: str | None = None
    domain: str = "core.windows.net"
    relative: str = ""

    @property
    def root(self) -> str:
        """The location as users write it."""
        if self.account:
            bucket = f"abfss://{self.bucket}@{self.account}.dfs.{self.domain}"
        else:
            bucket = f"{self.relative or self.scheme}://{self.bucket}"
        return f"{bucket}/{self.prefix}" if self.prefix else bucket

    @property
    def native_root(self) -> str:
        """The location for Spark's file systems."""
        return "s3a" + self.root[2:] if self.scheme == "s3" and not self.relative else self.root


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions:
    """Options of a store: obstore's configuration, whether plain HTTP is allowed, the number of attempts.

    Without `conditional` the store has no conditional puts: then writes compare and put in two requests, and a put that
    must not replace an object has the header `create_header`, if the store has one.
    """

    config: dict[str, str]
    allow_http: bool
    attempts: int
    conditional: bool = True
    create_header: str = ""


def parse_object_location(scheme: str, location: str, *, relative: str = "") -> ObjectLocation:
    """Split `scheme://bucket/prefix` (or `abfss://container@account.dfs.core.windows.net/prefix`)."""
    bucket, _, prefix = location.partition("://")[2].partition("/")
    prefix = prefix.strip("/")
    if not bucket:
        raise UserError(
            f"location {location!r} names no bucket; write {relative or scheme}://bucket/path", location=location
        )
    if "//" in prefix or any(segment in (".", "..") for segment in prefix.split("/")):
        raise UserError(f"location {location!r} must not contain '//', '.' or '..' in its path", location=location)
    if scheme != "az" or "@" not in bucket:
        return ObjectLocation(scheme=scheme, bucket=bucket, prefix=prefix, relative=relative)
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
    if location.relative:
        _add_relative(location, config, settings)
    if location.account:
        config.setdefault("azure_storage_account_name", location.account)
    if "Anonymous" in settings.get("credentials_provider", "") and location.scheme == "s3":
        config.setdefault("aws_skip_signature", "true")
    plain = _is_true(settings.get("allow_http", "false")) or settings.get("ssl_enabled", "").lower() == "false"
    if location.scheme == "s3":
        plain = _complete_endpoints(config, plain=plain)
    relative = RELATIVES.get(location.relative)
    stated = config.pop(_CONDITIONAL, "") or os.environ.get(_CONDITIONAL.upper(), "")
    conditional = (stated or ("disabled" if relative else "etag")).lower() != "disabled"
    return ObjectOptions(
        config=config,
        allow_http=plain,
        attempts=_attempts(settings.get("max_attempts")),
        conditional=conditional,
        create_header=relative.create_header if relative and not conditional else "",
    )


def _complete_endpoints(config: dict[str, str], *, plain: bool) -> bool:
    """Add the scheme to endpoints without one; return whether plain HTTP is allowed."""
    for name in _ENDPOINTS:
        endpoint = config.get(name) or os.environ.get(name.upper())
        if endpoint and "://" not in endpoint:
            config[name] = endpoint = f"{'http' if plain else 'https'}://{endpoint}"
        # An endpoint with http:// allows plain HTTP.
        plain = plain or (endpoint or "").startswith("http://")
        if endpoint and endpoint.rstrip("/").endswith(_R2):
            config.setdefault("aws_region", "auto")
    return plain


def _add_relative(location: ObjectLocation, config: dict[str, str], settings: Mapping[str, str]) -> None:
    """Add the options that the connector of the store names, and the endpoint with the bucket."""
    relative, lead = RELATIVES[location.relative], f"{location.relative}_"
    for name in ("access_key_id", "secret_access_key", "session_token"):
        if lead + name in settings:
            config.setdefault(f"aws_{name}", settings[lead + name])
    region = settings.get(f"{lead}region", config.get("aws_region", ""))
    given = next((config.pop(name) for name in _ENDPOINTS if name in config), "") or settings.get(f"{lead}endpoint", "")
    endpoint = given or (relative.from_region.format(region) if region else "")
    if not endpoint:
        option = "fs.cosn.bucket.region" if location.relative == "cosn" else f"fs.{location.relative}.endpoint"
        raise UserError(
            f"{location.root} needs an endpoint such as {relative.from_region.format('<region>')}: set the storage "
            f"option {option} or AWS_ENDPOINT_URL",
            location=location.root,
        )
    scheme, separator, host = endpoint.rpartition("://")
    match = relative.endpoint.fullmatch(host.rstrip("/").removeprefix(f"{location.bucket}."))
    if match and not region:
        region = match[1]
    config.setdefault("aws_region", region or "us-east-1")
    if match:
        # These stores refuse path-style requests; the client takes an endpoint with the bucket.
        config["aws_virtual_hosted_style_request"] = "true"
        host = f"{location.bucket}.{match[0]}"
    config["aws_endpoint_url"] = f"{scheme}{separator}{host}"


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
