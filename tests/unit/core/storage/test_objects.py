"""Object storage under faults: lost replies, refused requests, temporary and permanent faults."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.objects import ObjectStorage
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UserError
from tests.support.s3 import FaultyProxy, S3Server

pytestmark = pytest.mark.s3


@pytest.fixture
def direct(s3_server: S3Server, request: pytest.FixtureRequest) -> Storage:
    return open_storage(f"s3://{s3_server.bucket}/{request.node.name}", s3_server.options)


@pytest.fixture
def proxied(s3_server: S3Server, s3_proxy: FaultyProxy, request: pytest.FixtureRequest) -> Storage:
    options = {**s3_server.options, "fs.s3a.endpoint": s3_proxy.endpoint}
    return open_storage(f"s3://{s3_server.bucket}/{request.node.name}", options)


@pytest.mark.parametrize("fault", ["503-after", "500-after", "drop-after"])
def test_create_with_a_lost_reply_recognises_its_unique_bytes(
    proxied: Storage, direct: Storage, s3_proxy: FaultyProxy, fault: str
) -> None:
    s3_proxy.faults = {"PUT": [fault]}
    assert proxied.create("t/1.commit", b"token-1", unique=True) is True
    assert direct.get("t/1.commit") == b"token-1"
    assert s3_proxy.seen == [f"PUT {fault}", "GET pass"]


@pytest.mark.parametrize("data", [b"", b"not unique"])
def test_create_with_a_lost_reply_raises_unknown_state_for_bytes_that_are_not_unique(
    proxied: Storage, direct: Storage, s3_proxy: FaultyProxy, data: bytes
) -> None:
    s3_proxy.faults = {"PUT": ["503-after"]}
    with pytest.raises(CommitStateUnknownError, match=r"1\.commit"):
        proxied.create("t/1.commit", data)
    assert direct.get("t/1.commit") == data


@pytest.mark.parametrize("fault", ["503", "drop", "503-after", "drop-after"])
def test_create_with_a_lost_reply_returns_false_for_bytes_of_another_writer(
    proxied: Storage, direct: Storage, s3_proxy: FaultyProxy, fault: str
) -> None:
    direct.put("t/1.commit", b"other")
    s3_proxy.faults = {"PUT": [fault]}
    assert proxied.create("t/1.commit", b"ours", unique=True) is False
    assert direct.get("t/1.commit") == b"other"


@pytest.mark.parametrize("fault", ["503", "drop", "429", "409"])
def test_create_is_repeated_if_the_object_does_not_exist(
    proxied: Storage, direct: Storage, s3_proxy: FaultyProxy, fault: str
) -> None:
    s3_proxy.faults = {"PUT": [fault]}
    assert proxied.create("t/1.commit", b"ours") is True
    assert direct.get("t/1.commit") == b"ours"
    assert s3_proxy.seen == [f"PUT {fault}", "GET pass", "PUT pass"]


def test_create_after_a_conflict_response_does_not_claim_equal_bytes_of_another_writer(
    proxied: Storage, direct: Storage, s3_proxy: FaultyProxy
) -> None:
    direct.put("t/1.requested", b"")
    s3_proxy.faults = {"PUT": ["409"]}
    assert proxied.create("t/1.requested", b"") is False


def test_create_that_fails_repeatedly_raises_retryable_or_unknown_state(
    proxied: Storage, s3_proxy: FaultyProxy
) -> None:
    s3_proxy.faults = {"PUT": ["503"] * 3}
    with pytest.raises(RetryableError, match="was not created"):
        proxied.create("t/1.commit", b"ours", unique=True)
    s3_proxy.faults = {"PUT": ["503", "drop", "503"]}
    with pytest.raises(CommitStateUnknownError, match="may take effect later"):
        proxied.create("t/2.commit", b"ours", unique=True)


def test_create_that_cannot_be_read_back_raises_unknown_state(proxied: Storage, s3_proxy: FaultyProxy) -> None:
    s3_proxy.faults = {"PUT": ["drop-after"], "GET": ["503"] * 3}
    with pytest.raises(CommitStateUnknownError, match="could not be read back"):
        proxied.create("t/1.commit", b"ours", unique=True)


def test_unreachable_storage_raises_a_retryable_error_for_each_method(s3_server: S3Server) -> None:
    options = {**s3_server.options, "fs.s3a.endpoint": "http://127.0.0.1:9", "fs.s3a.attempts.maximum": "1"}
    store = open_storage("s3://lake/x", options)
    calls: list[Callable[[], object]] = [
        lambda: store.get("a"),
        lambda: store.put("a", b""),
        lambda: store.create("a", b"", unique=True),
        lambda: store.list(""),
        lambda: store.list_dir(""),
        lambda: store.delete("a"),
        lambda: store.delete_many(["a"]),
        lambda: store.open_input("a"),
    ]
    for call in calls:
        with pytest.raises(RetryableError):
            call()


def test_temporary_faults_are_retried_within_a_call(proxied: Storage, s3_proxy: FaultyProxy) -> None:
    s3_proxy.faults = {"PUT": ["503", "500"], "GET": ["503", "drop"]}
    proxied.put("a", b"1")
    assert proxied.get("a") == b"1"


def test_permanent_faults_raise_a_retryable_error_after_all_attempts(proxied: Storage, s3_proxy: FaultyProxy) -> None:
    s3_proxy.faults = {"GET": ["503"] * 10}
    with pytest.raises(RetryableError, match="503"):
        proxied.get("a")
    assert s3_proxy.seen == ["GET 503"] * 3


def test_output_whose_close_fails_leaves_no_object_and_no_upload(
    proxied: Storage, direct: Storage, s3_proxy: FaultyProxy, s3_server: S3Server
) -> None:
    s3_proxy.faults = {"PUT": ["403"] * 20}
    with pytest.raises(UserError, match="403"), proxied.open_output("f.parquet") as output:
        output.write(b"x" * 100)
    with pytest.raises(UserError, match="403"), proxied.open_output("g.parquet") as output:
        for _ in range(40):
            output.write(b"x" * (1 << 20))
    assert direct.list("") == []
    assert "Uploads" not in s3_server.client().list_multipart_uploads(Bucket=s3_server.bucket)


def test_aborted_multipart_upload_leaves_no_parts(direct: Storage, s3_server: S3Server) -> None:
    output = direct.open_output("f.parquet")
    for _ in range(20):
        output.write(b"x" * (1 << 20))
    output.abort()
    assert "Uploads" not in s3_server.client().list_multipart_uploads(Bucket=s3_server.bucket)
    assert direct.list("") == []


@pytest.mark.parametrize(
    ("status", "error"), [(403, UserError), (400, UserError), (404, NotFoundError), (429, RetryableError)]
)
def test_http_status_decides_the_error_class(
    proxied: Storage, s3_proxy: FaultyProxy, status: int, error: type[LakehouseError]
) -> None:
    s3_proxy.faults = {"GET": [str(status)] * 3}
    with pytest.raises(error) as caught:
        proxied.get("a")
    assert "Debug source" not in str(caught.value)


def test_missing_bucket_is_named_in_the_error(s3_server: S3Server) -> None:
    store = open_storage("s3://no-such-bucket/x", s3_server.options)
    for call in (lambda: store.put("a", b""), lambda: store.list(""), lambda: store.create("a", b"")):
        with pytest.raises(UserError, match="no-such-bucket"):
            call()


def test_keys_are_stored_without_escapes(direct: Storage, s3_server: S3Server) -> None:
    direct.put("p=a%2Fb/x y:z+ü", b"1")
    prefix = direct.root.removeprefix(f"s3://{s3_server.bucket}/")
    listed = s3_server.client().list_objects_v2(Bucket=s3_server.bucket, Prefix=prefix)["Contents"]
    assert [entry["Key"] for entry in listed] == [f"{prefix}/p=a%2Fb/x y:z+ü"]


def test_directory_markers_of_hadoop_are_not_files(direct: Storage, s3_server: S3Server) -> None:
    prefix = direct.root.removeprefix(f"s3://{s3_server.bucket}/")
    for key in ("", "p=1/", "p=1/deep/"):
        s3_server.client().put_object(Bucket=s3_server.bucket, Key=f"{prefix}/{key}", Body=b"")
    direct.put("p=1/deep/f", b"1")
    direct.put("1.requested", b"")
    assert [file.path for file in direct.list("")] == ["1.requested", "p=1/deep/f"]
    assert [file.path for file in direct.list("p=1")] == ["p=1/deep/f"]
    files, names = direct.list_dir("p=1")
    assert ([file.path for file in files], names) == ([], ["deep"])


def test_small_file_is_opened_and_read_with_one_request(
    proxied: Storage, direct: Storage, s3_proxy: FaultyProxy
) -> None:
    direct.put("a", b"x" * 100_000)
    with proxied.open_input("a") as file:
        file.seek(50_000)
        assert len(file.read()) == 50_000
        file.seek(0)
        assert len(file.read()) == 100_000
    assert s3_proxy.seen == ["GET pass"]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_raises_an_error_and_does_not_block(direct: Storage) -> None:
    direct.put("a", b"")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            direct.get("a")
            os.write(writer, b"no error")
        except UserError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(reader, "rb") as message:
        assert b"forked" in message.read()


def test_options_are_pickled_and_not_printed(direct: Storage) -> None:
    assert isinstance(direct, ObjectStorage)
    assert "secret" in str(direct.__reduce__())
    assert "secret" not in repr(direct)
