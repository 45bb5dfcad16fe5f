"""The page on which a study is begun, as a browser without scripts sends it: who may, and what comes back."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tempopt.records.pool import Quota
from tests.server.conftest import Served
from tests.server.test_specs import TWO_FAULTS, text_of
from tests.toy_study import toy_spec

MARKUP = "</textarea><script>alert(1)</script>"


@contextmanager
def signed_in(served: Served, token: str) -> Iterator[httpx.Client]:
    """Yield a browser without scripts that somebody has signed in with."""
    headers = {"accept": "text/html", "sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=60) as client:
        answer = client.post("/sign-in", data={"token": token})
        assert answer.status_code == 303, answer.text
        yield client


@pytest.fixture
def client(served: Served) -> Iterator[httpx.Client]:
    with signed_in(served, served.new_token("submit")) as made:
        yield made


def send(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    """Return the answer to the form of the page."""
    page = client.get("/submit").text
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found is not None
    return client.post(path, data={"csrf": found[1], **fields})


def test_a_spec_that_is_right_begins_a_study_of_whoever_starts_it(
    served: Served, client: httpx.Client
) -> None:
    answer = send(client, "/submit", text=text_of(toy_spec()), queue="night", priority="-3")
    assert (answer.status_code, answer.headers["location"]) == (303, "/studies/toy")
    study = served.store.load_study("toy")
    assert (study.state, study.owner, study.queue, study.priority) == ("running", "other", "night", -3)
    [line] = [each for each in served.store.audited() if each.action == "POST /submit"]
    assert (line.name, line.study, line.status) == ("other", "toy", 303)
    # what is sent twice is begun once
    again = send(client, "/submit", text=text_of(toy_spec()))
    assert again.status_code == 303
    assert len(served.store.list_studies()) == 1


def test_faults_come_back_at_their_lines_with_the_text_that_was_sent(
    served: Served, client: httpx.Client
) -> None:
    # browsers send line ends of their own
    answer = send(client, "/submit", text=TWO_FAULTS.replace("\n", "\r\n"))
    assert answer.status_code == 422
    lines = re.findall(r'<div class="line error"><span class="ghost">([^<]*)</span>', answer.text)
    assert [each.strip() for each in lines] == ["direction: sideways", "max_steps: none"]
    assert re.findall(r'<li class="error"[^>]* data-line="(\d+)"', answer.text) == ["4", "7"]
    kept = re.search(r"<textarea[^>]*>\n(.*)</textarea>", answer.text, re.DOTALL)
    assert kept is not None and html.unescape(kept[1]) == TWO_FAULTS
    assert 'id="findings"' in answer.text and "autofocus" in answer.text
    assert served.store.list_studies() == []


def test_a_check_says_the_price_and_begins_nothing(served: Served, client: httpx.Client) -> None:
    answer = send(client, "/submit/check", text=text_of(toy_spec()), seconds="60", workers="2")
    assert answer.status_code == 200
    assert "60 s a run, as given." in answer.text
    assert "time on 2 workers" in answer.text
    assert served.store.list_studies() == []
    assert [each for each in served.store.audited() if "submit" in each.action] == []


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("priority", "high", "whole number from -1000 to 1000"),
        ("priority", "1001", "whole number from -1000 to 1000"),
        ("queue", "a b", "at most 63 letters"),
        ("seconds", "0", "above 0"),
        ("seconds", "nan", "above 0"),
        ("workers", "0", "from 1 to 10000"),
    ],
)
def test_a_field_that_is_wrong_is_told_at_the_field(
    served: Served, client: httpx.Client, field: str, value: str, allowed: str
) -> None:
    answer = send(client, "/submit", text=text_of(toy_spec()), **{field: value})
    assert answer.status_code == 422
    said = re.search(rf'<p class="small fault" id="{field}-help">([^<]*)</p>', answer.text)
    assert said is not None and allowed in said[1]
    assert served.store.list_studies() == []


def test_a_study_of_that_name_with_another_spec_is_told_and_left_alone(
    served: Served, client: httpx.Client
) -> None:
    send(client, "/submit", text=text_of(toy_spec()))
    answer = send(client, "/submit", text=text_of(toy_spec(metric="val_other")))
    assert answer.status_code == 422
    assert "was begun with another spec" in answer.text
    assert "study.metric: was" in html.unescape(answer.text)


def test_what_is_left_of_a_budget_is_beside_the_price(served: Served, client: httpx.Client) -> None:
    served.store.pool.set_quota(Quota(queue="", user="other", gpu_hours=12.0, days=7.0))
    served.store.pool.set_quota(Quota(queue="", user="somebody", gpu_hours=99.0))
    answer = send(client, "/submit/check", text=text_of(toy_spec()))
    assert "12 of 12 GPU-hours for 7 days are left of other." in answer.text
    assert "99" not in re.sub(r'value="[^"]*"', "", answer.text)


def test_markup_in_a_spec_is_text(served: Served, client: httpx.Client) -> None:
    answer = send(client, "/submit/check", text=f"study: {{name: '{MARKUP}'}}\n{MARKUP}: 1\n")
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text
    assert html.escape(MARKUP) in answer.text or "&lt;/textarea&gt;" in answer.text


def test_nobody_but_who_may_submit_sees_the_page_or_a_link_to_it(served: Served) -> None:
    with signed_in(served, served.new_token("view")) as viewer:
        assert 'href="/submit"' not in viewer.get("/").text
        refused = viewer.get("/submit")
        assert refused.status_code == 403
        assert "submit" in refused.text
        assert viewer.post("/submit", data={"text": text_of(toy_spec())}).status_code == 403
    with httpx.Client(base_url=served.url, headers={"accept": "text/html"}, timeout=60) as stranger:
        assert stranger.get("/submit").status_code == 401
    assert served.store.list_studies() == []


def test_a_form_of_another_site_begins_nothing(served: Served, client: httpx.Client) -> None:
    text = text_of(toy_spec())
    assert client.post("/submit", data={"text": text}).status_code == 403
    page = client.get("/submit").text
    csrf = re.findall(r'name="csrf" value="([^"]+)"', page)[0]
    foreign = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
    assert client.post("/submit", data={"csrf": csrf, "text": text}, headers=foreign).status_code == 403
    assert served.store.list_studies() == []


def test_no_study_outside_of_a_prefix_is_begun(served: Served, tmp_path: Path) -> None:
    with signed_in(served, served.new_token("submit", studies="vision-")) as client:
        answer = send(client, "/submit", text=text_of(toy_spec()))
        assert answer.status_code == 422
        assert "Give another name" in answer.text
        assert send(client, "/submit", text=text_of(toy_spec(name="vision-a"))).status_code == 303
    assert [each.study.name for each in served.store.list_studies()] == ["vision-a"]
