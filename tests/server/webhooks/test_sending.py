"""One message on its way: its signature by the words of the specification, and what counts as delivered."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from tempopt.server.webhooks import sending
from tempopt.server.webhooks.endpoints import Endpoint, new_secret
from tempopt.server.webhooks.events import text
from tempopt.server.webhooks.sending import Answer, send
from tests.server.webhooks.receiver import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def endpoint(url: str, *secrets: str) -> Endpoint:
    return Endpoint(name="chat", url=url, secrets=secrets or (new_secret(),))


def test_a_message_is_signed_with_each_secret_as_the_specification_says(receiver: Receiver) -> None:
    old, new = new_secret(), new_secret()
    body = text("study.done", {"study": "caf\u00e9", "best": 0.1})
    assert send(endpoint(receiver.url, old, new), "msg_1", body) == Answer()
    (got,) = receiver.got
    assert got.body == body and got.headers["content-type"] == "application/json"
    headers = {name.lower(): value for name, value in got.headers.items()}
    assert headers["webhook-id"] == "msg_1"
    stamp = headers["webhook-timestamp"]
    assert abs(int(stamp) - time.time()) < 60
    # https://www.standardwebhooks.com: HMAC-SHA256 of id, timestamp and body, joined by full stops
    expected = []
    for secret in (old, new):
        key = base64.b64decode(secret.removeprefix("whsec_"))
        made = hmac.new(key, f"msg_1.{stamp}.{body}".encode(), hashlib.sha256).digest()
        expected.append(f"v1,{base64.b64encode(made).decode()}")
    assert headers["webhook-signature"] == " ".join(expected)
    for secret in (old, new):
        assert got.read(secret) == json.loads(body)
    with pytest.raises(Exception, match="No matching signature"):
        got.read(new_secret())


def test_the_specifications_own_example_is_signed_as_it_says() -> None:
    from datetime import UTC, datetime

    from standardwebhooks import Webhook

    # the example of the specification's reference implementations
    signed = Webhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").sign(
        "msg_p5jXN8AQM9LWM0D4loKWxJek", datetime.fromtimestamp(1614265330, UTC), '{"test": 2432232314}'
    )
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("status", [301, 302, 400, 401, 404, 429, 500, 503])
def test_any_answer_but_a_success_is_a_failure_and_redirects_are_not_followed(
    receiver: Receiver, status: int
) -> None:
    receiver.answers = [status]
    receiver.headers = {"location": receiver.url}
    found = send(endpoint(receiver.url), "msg_1", "{}")
    assert found == Answer(error=f"answered {status}")
    assert len(receiver.got) == 1


def test_a_receiver_may_ask_to_wait_or_for_nothing_more(receiver: Receiver) -> None:
    receiver.headers = {"retry-after": "120"}
    receiver.answers = [503, 503, 503, 410]
    assert send(endpoint(receiver.url), "msg_1", "{}").wait == 120.0
    receiver.headers = {"retry-after": "9" * 400}
    assert send(endpoint(receiver.url), "msg_1", "{}").wait == 6 * 3600.0
    receiver.headers = {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}
    assert send(endpoint(receiver.url), "msg_1", "{}").wait == 0.0
    assert send(endpoint(receiver.url), "msg_1", "{}").gone


def test_where_nobody_listens_the_reason_is_told_without_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        found = send(endpoint(f"http://127.0.0.1:{port}/hidden"), "msg_1", "{}")
    assert "refused" in found.error.lower() or "not reached" in found.error
    assert "hidden" not in found.error


def test_whatever_fails_is_an_answer_and_a_name_that_is_looked_up_for_long_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert send(endpoint("http://127.0.0.1:99999/hidden"), "msg_1", "{}").error.startswith("not reached (")
    monkeypatch.setenv("ALL_PROXY", "nothing://127.0.0.1:1")
    assert send(endpoint("http://127.0.0.1:1/hidden"), "msg_1", "{}").error.startswith("not reached (")
    monkeypatch.delenv("ALL_PROXY")
    monkeypatch.setattr(sending, "LONGEST_SECONDS", 0.5)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **more: time.sleep(4))
    began = time.monotonic()
    assert send(endpoint("http://name.example/"), "msg_1", "{}") == Answer(error="no answer within 0.5 s")
    assert time.monotonic() - began < 3.0


@pytest.mark.parametrize("how", ["silent", "drips", "floods"])
def test_a_receiver_that_never_ends_keeps_nobody_for_long(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    longest = 1.0 if how != "floods" else 20.0
    monkeypatch.setattr(sending, "LONGEST_SECONDS", longest)

    def behave(handler: BaseHTTPRequestHandler) -> None:
        try:
            if how == "silent":
                time.sleep(5)
            elif how == "drips":
                handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
                for _ in range(50):
                    handler.wfile.write(b"x-more: 1\r\n")
                    handler.wfile.flush()
                    time.sleep(0.1)
            else:
                handler.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                for _ in range(1000):
                    handler.wfile.write(b"x" * 1_000_000)
        except OSError:
            pass

    receiver.behave = behave
    began = time.monotonic()
    found = send(endpoint(receiver.url), "msg_1", "{}")
    assert time.monotonic() - began < longest + 3.0
    assert found == (Answer() if how == "floods" else Answer(error="no answer within 1 s"))
