"""PostgreSQL over TLS: runs check the certificate and the name of the server, and no password is sent without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyspark.sql import SparkSession

from lakehouse.errors import UserError
from lakehouse.spec.contracts.job import JobStatus
from tests.support.postgres import PgDatabase, PgServer, PgShop, postgres_server
from tests.support.postgresql import HOST

pytestmark = pytest.mark.spark


def certificate(folder: Path) -> Path:
    """Write a certificate for 127.0.0.1 that is signed by itself, and its key; return the file of the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(exist_ok=True)
    plain = serialization.NoEncryption()
    encoded = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "server.key").write_bytes(encoded)
    (folder / "server.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return folder / "server.crt"


@contextmanager
def secured(own: Path) -> Iterator[PgServer]:
    """Run a server with the certificate in the folder of `own` that refuses connections without TLS."""
    with postgres_server() as running:
        data = running.running.place / "data"
        for name in ("server.crt", "server.key"):
            shutil.copy(own.parent / name, data / name)
            (data / name).chmod(0o600)
            if running.running.user is not None:
                shutil.chown(data / name, running.running.user)
        # The first matching line decides, so the account of ingestions is refused without TLS.
        rules = (data / "pg_hba.conf").read_text()
        lines = "hostssl all reader 127.0.0.1/32 scram-sha-256\nhost all reader 127.0.0.1/32 reject\n"
        (data / "pg_hba.conf").write_text(lines + rules)
        running.admin.run("alter system set ssl = on", "select pg_reload_conf()")
        yield running


class TlsDatabase(PgDatabase):
    """A database whose connection has an extra."""

    extra: dict[str, str]
    host = HOST

    @property
    def connection(self) -> dict[str, str]:
        """The environment variable of the connection."""
        ((name, text),) = super().connection.items()
        return {name: json.dumps({**json.loads(text), "host": self.host, "extra": self.extra})}


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[PgShop]:
    with secured(certificate(tmp_path / "server")) as running:
        made = running.database()
        database = TlsDatabase(running.running, made.name)
        database.extra = {"sslmode": "verify-full", "sslrootcert": str(tmp_path / "server/server.crt")}
        yield PgShop(spark, database, tmp_path)


def test_runs_by_tls_check_certificate_and_name_of_the_server(shop: PgShop, tmp_path: Path) -> None:
    shop.sql("create table t (id int primary key, n int)", "insert into t select n, 0 from generate_series(1, 50) n")
    shop.settings |= {"chunk_rows": 20, "max_chunks": 2}
    # Snapshot chunks, questions and the log have a connection each.
    assert shop.run().status is JobStatus.COMMITTED
    shop.sql("update t set n = 1 where id < 9", "delete from t where id = 20")
    assert shop.run().status is JobStatus.COMMITTED
    assert shop.stored("id, n") == shop.source("id, n")
    database: TlsDatabase = shop.server
    good = database.extra
    other = certificate(tmp_path / "other")
    for extra, host, words in (
        ({"sslmode": "disable"}, HOST, "pg_hba.conf"),
        ({**good, "sslrootcert": str(other)}, HOST, "certificate verify failed"),
        ({**good, "sslrootcert": str(tmp_path / "none.crt")}, HOST, "root certificate file"),
        (good, "localhost", "does not match host name"),
    ):
        database.extra, database.host = extra, host
        with pytest.raises(UserError, match=words) as failure:
            shop.run()
        assert "reader-password" not in str(failure.value)
