"""Give the credentials of the driver's environment to the executors of a cluster.

On a cluster, executors do not have the environment of the driver. Spark's way to set their environment,
`spark.executorEnv.*`, shows the values on Spark's pages, in event logs and in arguments of processes. Instead:

    Python workers     get the variables with each function, inside of the serialized function
    Spark's readers    get Hadoop settings of the running context, which Spark sends with each read. Spark's pages and
                       event logs hide the values whose keys match `spark.redaction.regex`; other keys are not set

Names that only mean something on the host of the driver, such as paths of files and roles of the host, are not sent. A
key file of Google is sent by its content. Without credentials in the driver's environment nothing is sent, and the
executors use those of their hosts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from lakehouse.errors import UserError

_NAMES = re.compile(r"(AWS|GOOGLE|AZURE)_\w+|HADOOP_USER_NAME")
#: Variables that refer to the host of the driver.
_OF_HOST = re.compile(r"\w*(_FILE|_PATH|_PROFILE|_ENV|_ARN)|\w*_(CONTAINER|LAMBDA|ROLE|MSI|IDENTITY|FEDERATED)_\w+")
#: Variables with the path of a Google key file, in the order in which they are used.
_GOOGLE_FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS")
_GOOGLE_KEY = "GOOGLE_SERVICE_ACCOUNT_KEY"
#: Spark's default for settings whose values are hidden.
_REDACTION, _REDACTED = "spark.redaction.regex", "(?i)secret|password|token|access[.]?key"
_S3A = {
    "AWS_ACCESS_KEY_ID": "fs.s3a.access.key",
    "AWS_SECRET_ACCESS_KEY": "fs.s3a.secret.key",
    "AWS_SESSION_TOKEN": "fs.s3a.session.token",
    "AWS_DEFAULT_REGION": "fs.s3a.endpoint.region",
    "AWS_REGION": "fs.s3a.endpoint.region",
    "AWS_ENDPOINT_URL": "fs.s3a.endpoint",
    "AWS_ENDPOINT_URL_S3": "fs.s3a.endpoint",
}
#: Keys whose values are no secrets.
_PLAIN = ("fs.s3a.endpoint", "fs.s3a.endpoint.region", "fs.s3a.path.style.access")


def give_credentials(session: SparkSession, environ: Mapping[str, str]) -> None:
    """Add the storage credentials in an environment to the workers and the readers of a session's application.

    Settings that the session already has are not changed.
    """
    context = session.sparkContext
    for name, value in worker_variables(environ).items():
        context.environment.setdefault(name, value)
    redacted = str(context.getConf().get(_REDACTION, _REDACTED))
    settings = hadoop_settings(environ, redacted)
    hadoop = context._jsc.hadoopConfiguration()
    for key, value in settings.items():
        # Spark itself copies some variables. Other settings in its configuration are the user's.
        if not context.getConf().contains(f"spark.hadoop.{key}"):
            hadoop.set(key, value)


def worker_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an environment that give access to a storage from any host."""
    variables = {
        name: value
        for name, value in environ.items()
        if value and _NAMES.fullmatch(name) and not _OF_HOST.fullmatch(name) and name not in _GOOGLE_FILES
    }
    path = next((environ[name] for name in _GOOGLE_FILES if environ.get(name)), None)
    if path is not None and _GOOGLE_KEY not in variables:
        variables[_GOOGLE_KEY] = _content(path)
    return variables


def hadoop_settings(environ: Mapping[str, str], redacted: str) -> dict[str, str]:
    """Return Hadoop's settings for the credentials of S3 and Azure in an environment.

    Args:
        environ: The environment of the driver.
        redacted: The regular expression of the keys whose values Spark hides. Secrets with other keys are left out.
    """
    settings: dict[str, str] = {}
    if environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY"):
        settings = {key: environ[name] for name, key in _S3A.items() if environ.get(name)}
        virtual = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() in ("true", "1")
        if "fs.s3a.endpoint" in settings and not virtual:
            settings["fs.s3a.path.style.access"] = "true"
    account, key = environ.get("AZURE_STORAGE_ACCOUNT_NAME"), environ.get("AZURE_STORAGE_ACCOUNT_KEY")
    if account and key:
        settings[f"fs.azure.account.key.{account}.dfs.core.windows.net"] = key
    hidden = re.compile(redacted)
    return {key: value for key, value in settings.items() if key in _PLAIN or hidden.search(key)}


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"the key file {path} of Google cannot be read: {error.strerror}", path=path) from None
