"""The list of studies: who sees which, filtered and sorted, one picture of the store for all of them."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, create_engine, event, insert

from tempopt.records.liveness import study_standing
from tempopt.records.rows import StudyState, StudySummary
from tempopt.server.pages import shown
from tempopt.server.pages.findings import Findings, may_have_found, stamp
from tempopt.server.pages.overview import SORTS, STATES, Line, look, sorted_by
from tempopt.server.pages.recent import Recent
from tempopt.server.pages.rendering import ago, hours, value
from tempopt.server.pages.studies import PER_PAGE, Wish
from tempopt.store.models import STUDY, TICKET
from tests.server.conftest import Served
from tests.server.pages.conftest import Person
from tests.toy_study import toy_spec

_ROW = re.compile(r'<th scope="row" class="name"><a href="/studies/([^"]*)">')


def _names(text: str) -> list[str]:
    return _ROW.findall(text)


def _row(text: str, name: str) -> str:
    """Return what stands in the row of a study, as words."""
    row = text[text.index(f'<a href="/studies/{name}">') :]
    return " ".join(re.sub(r"<[^>]*>", " ", row[: row.index("</tr>")]).split())


@contextmanager
def counted() -> Iterator[list[str]]:
    """Yield the statements that any engine carries out."""
    said: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        # what studies have found is read in the background, whoever looks
        if threading.current_thread().name != "tempopt-findings":
            said.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield said
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def _told(person: Person, name: str, words: str, path: str = "/") -> str:
    """Return a row once it says these words, which may take until the study is read."""
    for _ in range(300):
        row = _row(person.get(path).text, name)
        if words in row:
            return row
        time.sleep(0.1)
    raise AssertionError(f"{name} does not say {words!r}: {row}")


def test_each_study_says_how_it_stands(ada: Person) -> None:
    row = _told(ada, "pairs", "Gain shown")
    assert all(each in row for each in ("h200", "done", "151/151", "val_accuracy", "ada", "default", "2 d"))
    row = _told(ada, "no-gain.v2", "No gain shown : change nothing")
    assert all(each in row for each in ("grace", "vision", "9 d"))
    row = _row(ada.get("/").text, "searching")
    assert all(each in row for each in ("running", "3 agents", "27/39", "priority 5", "No verdict yet"))
    row = _row(ada.get("/").text, "losing")
    assert all(each in row for each in ("waiting", "4 failed"))
    assert "1 running · 1 waiting · 1 paused · 2 done" in " ".join(ada.get("/").text.split())


def test_nobody_sees_what_is_not_theirs(sign_in: Callable[..., Person]) -> None:
    text = sign_in("view", studies="no-").get("/").text
    assert _names(text) == ["no-gain.v2"]
    assert "pairs" not in text and "katherine" not in text
    assert "No studies yet" in sign_in("view", studies="nothing").get("/").text
    assert sign_in("view", studies="no-").get("/studies/pairs").status_code == 404


def test_who_may_only_look_is_shown_no_way_to_submit(sign_in: Callable[..., Person]) -> None:
    assert 'href="/submit"' not in sign_in("view").get("/").text
    assert 'href="/submit"' in sign_in("submit").get("/").text


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("q=GAIN", ["no-gain.v2"]),
        ("q=search+grace", ["searching"]),
        ("q=h200", ["pairs"]),
        ("owner=grace&sort=name", ["no-gain.v2", "searching"]),
        ("state=running", ["searching"]),
        ("state=nonsense&q=losing", ["losing"]),
        ("q=nothing-like-it", []),
        ("sort=-age&state=done", ["no-gain.v2", "pairs"]),
        ("sort=-priority&owner=grace", ["searching", "no-gain.v2"]),
    ],
)
def test_studies_are_filtered_and_sorted(ada: Person, query: str, names: list[str]) -> None:
    assert _names(ada.get(f"/?{query}").text) == names
    assert _names(ada.get(f"/fragments/studies?{query}").text) == names


def test_what_is_typed_comes_back_escaped(ada: Person) -> None:
    text = ada.get("/", params={"q": '"><script>alert(1)</script>', "owner": "<b>x</b>"}).text
    assert "<script>alert" not in text and "<b>x" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("query", ["page=0", "page=x", f"q={'x' * 201}"])
def test_a_query_that_is_none_is_refused_as_a_page(ada: Person, query: str) -> None:
    answer = ada.get(f"/?{query}")
    assert answer.status_code == 422
    assert "invalid_request" in answer.text and "<h1" in answer.text


def test_a_part_that_is_known_is_not_sent_again(ada: Person, site: Served) -> None:
    _told(ada, "no-gain.v2", "No gain")
    first = ada.get("/fragments/studies?q=pairs")
    again = {"if-none-match": first.headers["etag"]}
    assert ada.get("/fragments/studies?q=pairs", headers=again).status_code == 304
    assert ada.get("/fragments/studies?q=losing", headers=again).status_code == 200
    site.store.set_state(site.store.load_study("pairs").id, "paused")
    site.app.state.pages.overview.forget()
    assert ada.get("/fragments/studies?q=pairs", headers=again).status_code == 200


def _many(storage: str, count: int, tickets: int) -> None:
    engine = create_engine(storage)
    spec, now = toy_spec(), datetime.now(UTC)
    with engine.begin() as connection:
        rows = [
            {
                "name": f"many-{number:03d}",
                "spec": spec,
                "spec_hash": f"{number}",
                "state": "running",
                "created": now - timedelta(hours=number),
                "owner": f"user-{number % 7}",
            }
            for number in range(count)
        ]
        first = 1000
        connection.execute(insert(STUDY), [{**row, "id": first + i} for i, row in enumerate(rows)])
        ticket = {
            "kind": "search",
            "stage": 2,
            "arm": "search",
            "seed": 1,
            "state": "done",
            "outcome": "complete",
            "attempt": 1,
            "failures": 0,
            "seconds": 2.0,
        }
        connection.execute(
            insert(TICKET),
            [
                {**ticket, "study_id": first + study, "number": number, "value": number / tickets}
                for study in range(count)
                for number in range(tickets)
            ],
        )
    engine.dispose()


def test_five_hundred_studies_cost_the_store_one_picture(
    ada: Person, site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "FRESH_SECONDS", 1e9)
    site.app.state.pages = shown.made(site.app.state.tempopt)
    with counted() as few:
        ada.get("/?state=running")
    _many(site.storage, 500, 10)
    site.app.state.pages.overview.forget()
    with counted() as said:
        text = ada.get("/?q=many").text
        assert len(_names(text)) == PER_PAGE
        for _ in range(5):
            ada.get("/fragments/studies?q=many&page=3")
    statements = [each for each in said if "tempopt_study" in each or "tempopt_ticket" in each]
    before = [each for each in few if "tempopt_study" in each or "tempopt_ticket" in each]
    assert 0 < len(set(statements)) <= 4
    assert len(statements) == len(before)
    assert f"1–{PER_PAGE} of 500" in text
    last = ada.get("/?q=many&page=99").text
    assert "401–500 of 500" in last and 'rel="next"' not in last


def test_findings_are_read_once_for_each_state_of_a_study(site: Served) -> None:
    findings = Findings(site.store, lambda: False)
    summaries = site.store.list_studies()
    assert findings.of(summaries) == {}
    assert findings.wait(120)
    with counted() as said:
        found = findings.of(summaries)
        assert findings.wait(10)
    assert not said
    answers = {each.study.name: found[each.study.id].answer for each in summaries if each.study.id in found}
    assert answers == {"pairs": "Gain shown", "no-gain.v2": "No gain shown"}
    some = next(each for each in summaries if each.study.name == "pairs")
    changed = replace(some, study=replace(some.study, version=some.study.version + 1))
    assert stamp(changed) != stamp(some)
    findings.of([changed])
    assert findings.wait(120)
    assert findings.of([]) == {}


def test_a_study_that_cannot_be_read_takes_no_other_from_the_list(site: Served) -> None:
    summaries = site.store.list_studies()
    gone = next(each for each in summaries if each.study.name == "pairs")
    site.store.delete_study("pairs")
    findings = Findings(site.store, lambda: False)
    findings.of(summaries)
    assert findings.wait(120)
    assert findings.of(summaries)[gone.study.id].answer == "deleted"


def test_a_server_that_is_to_end_reads_nothing_more(site: Served) -> None:
    findings = Findings(site.store, lambda: True)
    findings.of(site.store.list_studies())
    assert findings.wait(10)
    assert findings.of(site.store.list_studies()) == {}


def test_only_studies_that_may_have_found_something_are_read(site: Served) -> None:
    read = {each.study.name for each in site.store.list_studies() if may_have_found(each)}
    assert read == {"pairs", "no-gain.v2"}


def test_a_picture_is_taken_once_in_a_while(site: Served) -> None:
    clock, taken = SimpleNamespace(now=0.0), iter(range(9))
    recent = Recent(lambda: next(taken), seconds=2.0, clock=lambda: clock.now)
    assert [recent.now(), recent.now()] == [0, 0]
    clock.now = 2.0
    assert recent.now() == 1
    recent.forget()
    assert recent.now() == 2


_LINE = st.builds(
    Line,
    id=st.integers(1, 9),
    name=st.text(max_size=5),
    owner=st.sampled_from(["", "ada", "Grace"]),
    queue=st.sampled_from(["default", "vision"]),
    priority=st.integers(-5, 5),
    labels=st.just(()),
    state=st.sampled_from(STATES),
    agents=st.integers(0, 3),
    metric=st.just("m"),
    direction=st.just("maximize"),
    over=st.integers(0, 9),
    asked=st.integers(0, 9),
    failed=st.just(0),
    stage=st.just(""),
    best=st.none(),
    answer=st.sampled_from(["Gain shown", "No verdict yet"]),
    gain=st.booleans(),
    todo=st.just(""),
    hours=st.floats(0, 1e6),
    on_gpu=st.booleans(),
    created=st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    age=st.floats(0, 1e9),
)


@given(lines=st.lists(_LINE, max_size=8), key=st.sampled_from(SORTS), descending=st.booleans())
def test_sorting_keeps_every_study_and_reverses(lines: list[Line], key: str, descending: bool) -> None:
    found = sorted_by(lines, key, descending=descending)
    assert sorted(map(id, found)) == sorted(map(id, lines))
    plain = {"hours", "age", "priority"} & {key}
    for name in plain:
        values = [getattr(each, name) for each in found]
        assert values == sorted(values, reverse=descending)


@given(lines=st.lists(_LINE, max_size=8), wish=st.builds(Wish, sort=st.sampled_from(["", "x", *SORTS])))
def test_any_wish_sorts(lines: list[Line], wish: Wish) -> None:
    assert len(wish.sorted(lines)) == len(lines)


def test_a_heading_sorts_by_what_is_most_of_it_and_then_the_other_way() -> None:
    wish = Wish(q="a b", page=3)
    assert wish.by("name").query() == "q=a+b&sort=name"
    assert wish.by("name").by("name").query() == "q=a+b&sort=-name"
    assert wish.by("hours").sort == "-hours" and wish.by("hours").by("hours").sort == "hours"


@pytest.mark.parametrize(
    ("told", "agents", "state"),
    [
        ("done", 2, "done"),
        ("running", 1, "running"),
        ("running", 0, "waiting"),
        ("paused", 0, "paused"),
        ("paused", 1, "running"),
    ],
)
def test_a_study_at_work_is_running_whatever_it_was_told(told: StudyState, agents: int, state: str) -> None:
    assert study_standing(told, agents) == state


def test_the_best_of_a_search_to_minimize_is_its_lowest(site: Served) -> None:
    def best(direction: str) -> float | None:
        summaries = [
            replace(each, study=replace(each.study, spec=_turned(each, direction)))
            for each in site.store.list_studies()
            if each.study.name == "searching"
        ]
        store = SimpleNamespace(list_studies=lambda: summaries, totals=site.store.totals)
        return look(store, Findings(site.store, lambda: True))[0].best  # type: ignore[arg-type]

    tickets = site.store.tickets(site.store.load_study("searching").id, ["search"])
    values = [each.value for each in tickets if each.outcome == "complete" and each.value is not None]
    assert best("maximize") == max(values)
    assert best("minimize") == min(values)


def _turned(summary: StudySummary, direction: str) -> dict[str, object]:
    return {**summary.study.spec, "study": {**summary.study.spec["study"], "direction": direction}}


def test_numbers_are_told_as_people_read_them() -> None:
    assert [ago(each) for each in (-3, 59, 61, 7300, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
    assert [hours(each) for each in (0, 0.001, 0.25, 2.34, 1234.5)] == [
        "0.0",
        "< 1 min",
        "15 min",
        "2.3",
        "1,234",
    ]
    assert [value(each) for each in (None, 0.123456, -2.0, float("nan"))] == [
        "–",
        "0.1235",
        "−2",
        "not finite",
    ]
