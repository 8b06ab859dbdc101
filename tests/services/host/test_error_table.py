"""Every error travels both ways, by status and inside a session, and unknown ones keep their meaning."""

import time

import pytest
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from sure import sure

from persist import errors
from persist.core.catalog.errors import IdExhaustion
from persist.errors import PersistError
from persist.v1 import errors_pb2 as pb
from persist.wire import rpc_errors
from persist.wire.rpc_errors import TABLE, detail_of, error_of_detail, error_of_status, status_of

CLASSES = sorted(
    (
        cls
        for cls in PersistError.by_reason.values()
        # What only a client raises goes through no status.
        if cls.__module__.startswith("persist.") and not cls.__module__.startswith("persist.client.")
    ),
    key=lambda cls: cls.__name__,
)
USAGE_CODES = {
    rpc_errors.INVALID_ARGUMENT,
    rpc_errors.FAILED_PRECONDITION,
    rpc_errors.OUT_OF_RANGE,
    rpc_errors.NOT_FOUND,
    rpc_errors.PERMISSION_DENIED,
    rpc_errors.ALREADY_EXISTS,
    rpc_errors.ABORTED,
}


def sample(cls):
    return cls("it went wrong", hint="do this", since="[3]", retry_after_ms=250)


def test_names_that_strangers_gave_take_no_time_and_no_room():
    name = "://" * 300_000
    began = time.thread_time()
    status = status_of(errors.InvalidArgument(f"no column {name}", hint=name, column=name))
    assert time.thread_time() - began < 0.5
    assert status.message.startswith("no column ://")
    assert len(status.message) <= rpc_errors.MESSAGE_CHARS_MAX
    assert len(status.details) < 4096


def test_table_has_a_row_for_every_error():
    assert set(TABLE) == {*CLASSES, PersistError}


def test_table_reasons_are_the_enum_without_gaps():
    reasons = [row.reason for row in TABLE.values()]
    assert sorted(reasons) == sorted(set(pb.Reason.values()) - {pb.REASON_UNSPECIFIED})
    assert {pb.Reason.Name(row.reason) for row in TABLE.values()} == {"REASON_" + cls.reason for cls in TABLE}


@pytest.mark.parametrize("cls", [*CLASSES, PersistError], ids=lambda cls: cls.__name__)
def test_error_through_a_status_comes_back_equal(cls):
    error = sample(cls)
    status = status_of(error)
    back = sure(error_of_status(status.code, status.details))
    assert (type(back), back.message, back.hint, back.details) == (cls, error.message, error.hint, error.details)


@pytest.mark.parametrize("cls", [*CLASSES, PersistError], ids=lambda cls: cls.__name__)
def test_error_through_a_session_comes_back_equal(cls):
    error = sample(cls)
    back = error_of_detail(pb.ErrorDetail.FromString(detail_of(error).SerializeToString()))
    assert (type(back), back.message, back.hint, back.details) == (cls, error.message, error.hint, error.details)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_status_says_what_the_caller_must_do(cls):
    code = TABLE[cls].code
    if cls is IdExhaustion:
        assert code == rpc_errors.RESOURCE_EXHAUSTED
    elif issubclass(cls, errors.UsageError) or cls is errors.LeaseExpired:
        assert code in USAGE_CODES
    elif issubclass(cls, errors.CorruptData):
        assert code == rpc_errors.DATA_LOSS
    elif issubclass(cls, errors.Determinate):
        assert code in {rpc_errors.UNAVAILABLE, rpc_errors.RESOURCE_EXHAUSTED}
    else:
        assert code == rpc_errors.UNKNOWN


def test_status_of_overload_carries_a_retry_delay():
    status = Status.FromString(status_of(errors.Overloaded("full", retry_after_ms=1250)).details)
    delay = RetryInfo()
    assert status.details[1].Unpack(delay)
    assert delay.retry_delay.ToMilliseconds() == 1250


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (rpc_errors.INVALID_ARGUMENT, errors.UsageError),
        (rpc_errors.FAILED_PRECONDITION, errors.UsageError),
        (rpc_errors.NOT_FOUND, errors.UsageError),
        (rpc_errors.OUT_OF_RANGE, errors.UsageError),
        (rpc_errors.ALREADY_EXISTS, errors.UsageError),
        (rpc_errors.ABORTED, errors.UsageError),
        (rpc_errors.RESOURCE_EXHAUSTED, errors.Overloaded),
        (rpc_errors.DATA_LOSS, errors.CorruptData),
        (rpc_errors.UNAVAILABLE, errors.Determinate),
        (rpc_errors.UNKNOWN, errors.Indeterminate),
        (13, errors.Indeterminate),
    ],
)
def test_reason_of_a_newer_server_falls_back_on_the_status(code, cls):
    info = Any()
    info.Pack(ErrorInfo(domain="persist", reason="NOT_INVENTED_YET", metadata={"hint": "wait", "x": "1"}))
    error = sure(error_of_status(code, Status(code=code, message="new", details=[info]).SerializeToString()))
    assert (type(error), error.message, error.hint, error.details) == (cls, "new", "wait", {"x": "1"})


@pytest.mark.parametrize("code", range(1, 17))
@pytest.mark.parametrize("details", [None, b"", b"\xff\xff", "foreign"], ids=["none", "empty", "garbage", "foreign"])
def test_status_without_our_detail_is_nobody_s_answer(code, details):
    if details == "foreign":
        info = Any()
        info.Pack(ErrorInfo(domain="googleapis.com", reason="USAGE"))
        details = Status(code=code, details=[info]).SerializeToString()
    assert error_of_status(code, details) is None


def test_message_is_bounded_and_without_credentials():
    secret = "hunter2"
    error = errors.Determinate(
        f"cannot reach postgres://bob:{secret}@db/x\n?password={secret}&a=1 " + "x" * 5000,
        hint=f"try s3://key:{secret}@bucket",
        uri=f"redis://:{secret}@h:1/0" + "y" * 5000,
    )
    for text in (str(status_of(error)), str(detail_of(error))):
        assert secret not in text
        assert len(text) < 4000
    assert "postgres://***@db/x ?password=***&a=1" in status_of(error).message
