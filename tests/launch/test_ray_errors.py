"""What a person is told of exceptions of Ray's, also of those that say nothing; Ray need not be there."""

from __future__ import annotations

import pytest

from tempopt.launch.ray_errors import classify_transient, summarize_error

# as Ray 2.60 has them
_CLIENT_START_FAILED = (
    "Initialization failure from server:\nTraceback (most recent call last):\n  File "
    '"ray/util/client/server/proxier.py", line 772, in Datapath\n    raise RuntimeError(\nRuntimeError: '
    "Starting Ray client server failed. See ray_client_server_23000.err for detailed logs.\n"
)
_SLOW = "RuntimeError: Proxy failed to Connect to backend! Check `ray_client_server.err` and others."
_TWICE = "Call to `ray.init()` on the server failed with: Perhaps you called ray.init twice by accident?"


def _raise_and_catch(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.parametrize("error", [AssertionError(), RuntimeError(""), ValueError("  \n")], ids=repr)
def test_an_exception_without_a_message_is_named_with_its_place(error: Exception) -> None:
    message = summarize_error(_raise_and_catch(error))
    assert message.startswith(
        f"{type(error).__name__} without a message, raised in _raise_and_catch (test_ray_errors.py, "
    )
    assert "error inside of Ray. Try again; " in message and "/tmp/ray/session_latest/logs" in message


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    assert summarize_error(KeyError()).startswith(
        "KeyError without a message. This is an error inside of Ray."
    )


def test_a_message_is_one_line_and_a_long_one_keeps_its_ends() -> None:
    assert summarize_error(RuntimeError("two\n  lines ")) == "two lines"
    message = summarize_error("a" * 500 + " " + "z" * 500)
    assert len(message) < 650 and message.startswith("a" * 200) and message.endswith("z" * 400)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (_CLIENT_START_FAILED, "ray start --head with GRPC_ENABLE_FORK_SUPPORT=0"),
        (_SLOW, "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S=120"),
        (_TWICE, "one cluster per machine"),
        ("ray client connection timeout", "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S=120"),
        ("b'Timed out while waiting for GCS to become available.'", "ray status"),
        (
            "The current node timed out during startup. This could happen",
            "too busy to start a Ray of its own",
        ),
    ],
)
def test_what_another_try_may_not_meet_is_explained(message: str, advice: str) -> None:
    reason = classify_transient(ConnectionAbortedError(message))
    assert reason is not None and advice in reason.meaning


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Failed to create runtime_env for Ray client server, it is caused by: no such package"),
        RuntimeError("Version mismatch: The cluster was started with Ray 2.52"),
        ConnectionError("Could not find any running Ray instance."),
        AssertionError(),
    ],
    ids=repr,
)
def test_what_would_be_the_same_the_next_time_is_not_tried_again(error: Exception) -> None:
    assert classify_transient(error) is None
