"""``tempopt webhook``: a secret, a trial of the endpoints, what became of messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.records.webhooks import Message
from tempopt.server.webhooks.endpoints import new_secret
from tempopt.store import Store
from tests.server.webhooks.receiver import Receiver, receiving

SECRET = new_secret()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def file(tmp_path: Path, receiver: Receiver) -> Path:
    """A file with an endpoint that answers, and one that does not."""
    found = tmp_path / "webhooks.yaml"
    found.write_text(
        f"webhooks:\n  chat: {{url: '{receiver.url}', secret: {SECRET}}}\n"
        f"  mail: {{url: 'http://127.0.0.1:1/hidden', secret: {SECRET}}}\n",
        encoding="utf-8",
    )
    return found


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    assert cli.main(["webhook", *words]) == code
    out, err = capsys.readouterr()
    return out, err


def test_a_secret_is_all_that_standard_output_gets(
    capsys: pytest.CaptureFixture[str], receiver: Receiver, tmp_path: Path
) -> None:
    secret = said(capsys, "secret")[0].strip()
    assert secret != said(capsys, "secret")[0].strip()
    file = tmp_path / "one.yaml"
    file.write_text(f"webhooks: {{one: {{url: '{receiver.url}', secret: {secret}}}}}", encoding="utf-8")
    assert said(capsys, "test", "--webhooks", str(file)) == ("one (127.0.0.1): delivered\n", "")
    (got,) = receiver.got
    told = got.read(secret)
    assert told["type"] == "webhook.test" and told["data"]["endpoint"]["name"] == "one"


def test_every_endpoint_is_tried_and_one_that_fails_is_told(
    capsys: pytest.CaptureFixture[str], receiver: Receiver, file: Path
) -> None:
    out, err = said(capsys, "test", "--webhooks", str(file), code=1)
    assert out == "chat (127.0.0.1): delivered\n"
    assert err.startswith("mail (127.0.0.1): not reached (") and "hidden" not in err
    assert said(capsys, "test", "chat", "--webhooks", str(file))[0] == out
    assert len(receiver.got) == 2


def test_messages_are_listed_and_those_given_up_sent_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path / 'a.db'}"
    with Store.open(storage) as store:
        store.webhooks.add(
            [
                Message(id=f"msg_{key}", endpoint="chat", event="study.done", key=key, body="{}")
                for key in ("a", "b")
            ]
        )
        first, _ = store.webhooks.take("chat", most=2, seconds=60.0)
        store.webhooks.failed(first, "answered 404", again=None)
    heading, newest, oldest = said(capsys, "list", "--storage", storage)[0].splitlines()
    assert heading.split() == ["added", "endpoint", "event", "state", "attempts", "error"]
    assert newest.split()[2:] == ["chat", "study.done", "waiting", "1"]
    assert oldest.split()[2:] == ["chat", "study.done", "given_up", "1", "answered", "404"]
    rows = json.loads(said(capsys, "list", "--json", "--storage", storage)[0])
    assert [(row["id"], row["state"]) for row in rows] == [("msg_b", "waiting"), ("msg_a", "given_up")]
    assert said(capsys, "retry", "chat", "--storage", storage)[0].startswith("1 message to chat will be sent")
    assert said(capsys, "retry", "mail", "--storage", storage)[0].startswith(
        "No message to mail was given up"
    )
    assert "2 messages to it" in said(capsys, "forget", "chat", "--storage", storage)[0]
    assert len(said(capsys, "list", "--storage", storage)[0].splitlines()) == 1


WRONG = {
    "a file that is not for it": (["list", "--webhooks", "a.yaml"], "--webhooks is for tempopt webhook test"),
    "no file": (["test"], "tempopt webhook test --webhooks FILE"),
    "a name that is not for it": (["list", "chat"], "A name goes with test, retry and forget"),
    "JSON": (["secret", "--json"], "--json is for tempopt webhook list"),
    "no name": (["retry"], "tempopt webhook retry NAME"),
    "nobody to forget": (["forget"], "tempopt webhook forget NAME"),
    "a server": (["list", "--storage", "http://127.0.0.1:1"], "is a server"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_go_together_is_refused(capsys: pytest.CaptureFixture[str], what: str) -> None:
    words, told = WRONG[what]
    assert told in said(capsys, *words, code=2)[1]


def test_an_endpoint_that_the_file_does_not_have_is_refused(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    assert "It has chat, mail." in said(capsys, "test", "other", "--webhooks", str(file), code=2)[1]
