"""What tempopt lays over Optuna's dashboard, over HTTP; what it looks like is in test_browser_overlay.py."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tempopt.report.dashboard.access import Access
from tempopt.report.dashboard.dashboard import Dashboard
from tempopt.report.dashboard.overlay import headlines
from tempopt.report.dashboard.study_page import publish
from tempopt.report.plots import PLOTS
from tempopt.store.optuna_calls import make_study
from tempopt.store.store import Store
from tests.report.dashboard_rows import write_whole
from tests.report.made_study import World, make, write
from tests.report.test_dashboard import TOKEN, ask


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a finished study, whose page is there, and one that Optuna alone has."""
    url = f"sqlite:///{tmp_path_factory.mktemp('overlay') / 'studies.db'}"
    write_whole(url, World(trials=12))
    with Store.open(url) as store:
        publish(store, "pairs")
        make_study(store.url, name="foreign", direction="maximize", metric="accuracy")
    return url


@pytest.fixture(scope="module")
def served(url: str) -> Iterator[Dashboard]:
    with Dashboard(url, port=0) as dashboard:
        yield dashboard


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/studies/1", "/dashboard/studies/1/note"])
def test_every_page_has_stylesheet_and_script_of_its_own_address(served: Dashboard, path: str) -> None:
    answer = ask(served.url + path)
    page = answer.body.decode()
    linked = re.findall(r'(?:href|src)="(/tempopt/[^"]+)"', page.partition("</head>")[0])
    assert linked == ["/tempopt/overlay.css", "/tempopt/overlay.js"]
    assert int(answer.headers["Content-Length"]) == len(answer.body)
    # Optuna's policy stays, and lets in no more than before
    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
    for each, kind in zip(linked, ("text/css", "text/javascript"), strict=True):
        part = ask(served.url + each)
        assert part.status == 200
        assert part.headers["Content-Type"].startswith(kind)


def test_a_page_that_a_browser_has_from_optuna_alone_is_sent_anew(served: Dashboard) -> None:
    late = {"If_Modified_Since": "Fri, 01 Jan 2100 00:00:00 GMT", "Range": "bytes=0-9"}
    answer = ask(f"{served.url}/dashboard", **late)
    assert answer.status == 200
    assert b"/tempopt/overlay.js" in answer.body
    assert "Last-Modified" not in answer.headers


def test_the_stylesheet_puts_the_plots_in_the_reports_order(served: Dashboard) -> None:
    text = ask(f"{served.url}/tempopt/overlay.css").body.decode()
    found = re.findall(r'user-defined-plot:tempopt-(\w+)"\]\) \{ order: (-\d+); \}', text)
    assert [key for key, _ in sorted(found, key=lambda each: int(each[1]))] == list(PLOTS)


def test_studies_are_told_with_verdict_and_what_to_do(served: Dashboard) -> None:
    (study,) = json.loads(ask(f"{served.url}/tempopt/studies").body)
    assert (study["id"], study["name"], study["state"]) == (1, "pairs", "done")
    assert study["answer"] == "Gain shown"
    assert study["verdict"].startswith("val_accuracy is higher by")
    assert "tempopt export pairs" in study["todo"]
    assert study["in_short"] == "change the temperature at inference only"


def test_a_study_without_a_page_has_its_state_and_how_far_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    early = make(World(trials=6, confirmed=False))
    waiting = replace(early.tickets[-1], state="waiting", outcome=None, value=None)
    write(url, replace(early, tickets=[*early.tickets[:-1], waiting]))
    with Store.open(url) as store:
        assert headlines(store) == []
        make_study(store.url, name="pairs", direction="maximize", metric="val_accuracy")
        (study,) = headlines(store)
    runs = f"{len(early.tickets) - 1} of {len(early.tickets)} runs"
    assert study == {"id": 1, "name": "pairs", "state": "running", "runs": runs}


def test_what_is_not_there_is_said_and_a_head_has_no_body(served: Dashboard) -> None:
    assert ask(f"{served.url}/tempopt/other").status == 404
    head = ask(f"{served.url}/tempopt/overlay.js", method="HEAD")
    assert (head.status, head.body) == (200, b"")


@pytest.mark.parametrize("path", ["/tempopt/studies", "/tempopt/overlay.js"])
def test_who_has_no_secret_gets_nothing_of_it(url: str, path: str) -> None:
    with Dashboard(url, port=0, access=Access(token=TOKEN)) as dashboard:
        refused = ask(f"{dashboard.url}{path}")
        assert refused.status == 401
        assert b"pairs" not in refused.body
        known = ask(f"{dashboard.url}{path}", Authorization=f"Bearer {TOKEN}")
        assert known.status == 200
