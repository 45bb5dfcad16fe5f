"""The file that names endpoints: what may stand in it, and how each fault is told, without a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempopt.errors import UsageError
from tempopt.server.webhooks.endpoints import EVENTS, new_secret, read_endpoints

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="


def read(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    file = tmp_path / "webhooks.yaml"
    file.write_text(text, encoding="utf-8")
    return read_endpoints(file)


def test_endpoints_are_read_as_they_stand(tmp_path: Path) -> None:
    other = new_secret()
    chat, mail = read(
        tmp_path,
        f"""
webhooks:
  chat:
    url: https://chat.example.com/hooks/T0/hidden
    secret: {SECRET}
  mail:
    url: http://127.0.0.1:9000/
    secret: [{SECRET}, {other}]
    events: [study.verdict, budget.spent, study.verdict]
    studies: vision-
""",
    )
    assert (chat.name, chat.events, chat.studies, chat.secrets) == ("chat", EVENTS, "", (SECRET,))
    assert (mail.events, mail.studies) == (("study.verdict", "budget.spent"), "vision-")
    assert mail.secrets == (SECRET, other)
    assert chat.host == "chat.example.com"
    assert "hidden" not in repr(chat) and SECRET not in repr(mail)


def test_secrets_are_of_256_bits_and_differ() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100 and {len(each) for each in made} == {6 + 44}


WRONG = {
    "nothing": ("", "holds nothing"),
    "no endpoints": ("webhooks: {}\n", "webhooks.yaml:1: webhooks: "),
    "another key": (f"webhooks: {{a: {{url: 'https://a', secret: {SECRET}, to: b}}}}\n", "a.to: unknown key"),
    "no secret": ("webhooks:\n  a:\n    url: https://a\n", "webhooks.yaml:2: webhooks.a.secret: is missing"),
    "short secret": ("webhooks: {a: {url: 'https://a', secret: whsec_aGlkZGVu}}\n", "24 to 64 bytes"),
    "no base64": (
        "webhooks: {a: {url: 'https://a', secret: 'whsec_hidden!hidden!hidden!hidden!'}}\n",
        "base64",
    ),
    "no prefix": (f"webhooks: {{a: {{url: 'https://a', secret: {SECRET[6:]}}}}}\n", "whsec_"),
    "no secrets": ("webhooks: {a: {url: 'https://a', secret: []}}\n", "secret"),
    "no URL": (f"webhooks: {{a: {{url: a.example, secret: {SECRET}}}}}\n", "a URL with http or https"),
    "password": (f"webhooks: {{a: {{url: 'https://u:hidden@a', secret: {SECRET}}}}}\n", "without a password"),
    "event": (
        f"webhooks: {{a: {{url: 'https://a', secret: {SECRET}, events: [study.begun]}}}}\n",
        "study.done",
    ),
    "no events": (f"webhooks: {{a: {{url: 'https://a', secret: {SECRET}, events: []}}}}\n", "events"),
    "name": (f"webhooks: {{'a b': {{url: 'https://a', secret: {SECRET}}}}}\n", "a name has letters"),
    "no YAML": ("webhooks: [\n", "webhooks.yaml"),
    "port": (f"webhooks: {{a: {{url: 'http://a:99999', secret: {SECRET}}}}}\n", "a URL with http or https"),
    "a secret as an endpoint": (f"webhooks: {{a: {SECRET}}}\n", "names of endpoints"),
    "a secret as all": (f"webhooks: {SECRET}\n", "names of endpoints"),
    "a list of both": (f"webhooks: {{a: ['https://a/hidden', {SECRET}]}}\n", "names of endpoints"),
    "a list of URLs": (f"webhooks: {{a: {{url: ['https://a/hidden'], secret: {SECRET}}}}}\n", "posted to"),
    "a secret as a name": (f"webhooks: {{{SECRET}: {{url: 'https://a', secret: {SECRET}}}}}\n", "letters"),
    "a secret as a key": (f"webhooks: {{a: {{url: 'https://a', {SECRET}: 1}}}}\n", "unknown key"),
    "a secret as an event": (
        f"webhooks: {{a: {{url: 'https://a', secret: {SECRET}, events: [{SECRET}]}}}}\n",
        "study.done",
    ),
    "a secret as a prefix": (
        f"webhooks: {{a: {{url: 'https://a', secret: {SECRET}, studies: '{SECRET}'}}}}\n",
        "a prefix has letters",
    ),
    "a pattern": (f"webhooks: {{a: {{url: 'https://a', secret: {SECRET}, studies: v-*}}}}\n", "a prefix has"),
    "a secret alone": (f"{SECRET}\n", "the key webhooks:"),
    "too many": (
        "webhooks:\n" + "".join(f"  a{n}: {{url: 'https://a', secret: {SECRET}}}\n" for n in range(101)),
        "1 to 100 names",
    ),
    "too large": ("#" * 1_000_001, "1,000,000 at most"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_fault_is_told_with_its_place_and_no_secret(tmp_path: Path, what: str) -> None:
    text, told = WRONG[what]
    with pytest.raises(UsageError) as error:
        read(tmp_path, text)
    assert told in str(error.value)
    for secret in ("hidden", "aGlkZGVu", SECRET, SECRET[6:]):
        assert secret not in str(error.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml"):
        read_endpoints(tmp_path / "none.yaml")
