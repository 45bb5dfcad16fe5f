"""The pages of a study and of a run: what they say, who may do what, and that nothing of users is markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
import yaml

from tempopt.report.plots import PLOTS
from tempopt.results.study_result import load
from tempopt.results.verdict_text import headline
from tempopt.server.pages.results import Results, mark
from tempopt.server.pages.standing import RUN_STATES, latest_first, run_state, stages
from tempopt.store import optuna_calls
from tests.server.conftest import Served
from tests.server.pages.conftest import Person
from tests.server.pages.made_studies import MARKUP
from tests.server.pages.test_studies_page import counted

WRITES = {
    "pause": {},
    "resume": {},
    "stop": {},
    "retry": {},
    "grow": {"trials": "3", "version": "0"},
    "place": {"queue": "vision", "priority": "0"},
    "delete": {"confirm": "searching"},
}


def _words(text: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", text).split())


def _runs(text: str) -> list[str]:
    return re.findall(r'<th scope="row" class="run"><a href="[^"]*/runs/([^"]*)">', text)


def test_a_study_says_what_show_says(ada: Person, site: Served) -> None:
    text = ada.get("/studies/pairs").text
    result = load(site.store, "pairs")
    assert headline(result).removeprefix("Gain shown: ") in _words(text)
    assert "What to do:" in text
    for kind in {each.kind for each in result.runs}:
        asked = result.tickets[kind].requested
        label = {"init_only": "init only"}.get(kind, kind)
        assert re.search(rf'<th scope="row">{label}</th>.*?>{asked}/{asked}<', text, re.S), kind
    assert "owner ada" in text and "queue default, priority 0" in text and ">h200<" in text


def test_runs_are_paged_with_those_at_work_first(ada: Person, site: Served) -> None:
    pages = [_runs(ada.get(f"/studies/pairs/runs?page={number}").text) for number in (1, 2, 3, 4)]
    rows = site.store.tickets(site.store.load_study("pairs").id)
    assert [len(each) for each in pages] == [50, 50, 50, 1]
    assert sorted(each for page in pages for each in page) == sorted(each.name for each in rows)
    assert _runs(ada.get("/studies/pairs/runs?page=99").text) == pages[3]
    rows = site.store.tickets(site.store.load_study("searching").id)
    running = {each.name for each in rows if each.state == "running"}
    shown = _runs(ada.get("/studies/searching").text)
    assert set(shown[:3]) == running and shown == [each.name for each in latest_first(rows)]


@pytest.mark.parametrize("state", RUN_STATES)
def test_runs_are_filtered_by_stage_and_state(ada: Person, site: Served, state: str) -> None:
    for study in ("losing", "searching"):
        text = ada.get(f"/studies/{study}/runs?stage=search&state={state}").text
        rows = site.store.tickets(site.store.load_study(study).id, ["search"])
        wanted = {each.name for each in rows if run_state(each) == state}
        assert set(_runs(text)) == wanted
        assert wanted or "No run fits" in text


def test_stages_count_every_ticket_once(site: Served) -> None:
    for summary in site.store.list_studies():
        rows = site.store.tickets(summary.study.id)
        found = stages(rows)
        assert sum(each.asked + each.withdrawn for each in found) == len(rows)
        assert [each.kind for each in found] == [kind for kind in dict.fromkeys(r.kind for r in rows) if kind]


def test_what_users_write_is_never_markup(ada: Person) -> None:
    paths = ("/studies/losing", "/studies/losing/runs", "/studies/losing/runs/search-0", "/pool", "/")
    for text in (ada.get(path).text for path in paths):
        assert "<script>alert" not in text and "<img src=x" not in text
    page = ada.get("/studies/losing/runs/search-0").text
    escaped = MARKUP.replace("<", "&lt;").replace(">", "&gt;")
    assert page.count(escaped) >= 3
    assert "CUDA error: an illegal memory access" in page
    history = ada.get("/studies/losing/plots/history").text
    assert "<img" not in json.dumps(json.loads(history)["figure"]["layout"])


def test_a_run_says_how_it_went(ada: Person, site: Served) -> None:
    study = site.store.load_study("pairs")
    row = next(each for each in site.store.tickets(study.id, ["search"]) if each.outcome == "complete")
    text = _words(ada.get(f"/studies/pairs/runs/{row.name}").text)
    assert row.value is not None and f"Value {row.value:.4g}" in text
    assert "Steps 1000 of 1000" in text and f"Seed {row.seed}" in text
    assert row.parameters is not None and all(name in text for name in row.parameters)
    found = ada.get(f"/studies/pairs/runs/{row.name}/curve").json()
    reports = [each.value for each in site.store.measurements(study.id, [row.id], ["report"])]
    assert len(found["figure"]["data"]) == 2 and f"{row.name}" not in found.get("absent", "")
    assert reports and "ended complete" in found["caption"]
    waiting = next(
        each.name
        for each in site.store.tickets(site.store.load_study("searching").id)
        if each.state == "waiting"
    )
    assert "absent" in ada.get(f"/studies/searching/runs/{waiting}/curve").json()


@pytest.mark.parametrize("name", ["search-99999", "search", "x-1", "search--1", "search-1e5", "%00-1"])
def test_a_run_that_is_not_there_is_told_as_a_page(ada: Person, name: str) -> None:
    answer = ada.get(f"/studies/pairs/runs/{name}")
    assert answer.status_code == 404
    assert "<h1" in answer.text


@pytest.mark.parametrize("name", ["nobody", "a%2Fb", "<b>", "x" * 256, "%00", "ü"])
def test_a_study_that_is_not_there_is_told_as_a_page(ada: Person, name: str) -> None:
    answer = ada.get(f"/studies/{name}", follow_redirects=False)
    assert answer.status_code in (404, 422)
    assert "<b>" not in answer.text


def test_every_plot_is_drawn_or_says_why_not(ada: Person) -> None:
    for study in ("pairs", "searching", "losing"):
        keys = re.findall(rf'data-plot="/studies/{study}/plots/(\w+)"', ada.get(f"/studies/{study}").text)
        assert keys[0] == "history" and set(keys) <= set(PLOTS)
        for key in keys:
            found = ada.get(f"/studies/{study}/plots/{key}").json()
            assert ("absent" in found) != ("figure" in found), (study, key)
            assert found.get("absent") or (found["caption"] and found["figure"]["data"]), (study, key)
    assert ada.get("/studies/pairs/plots/nonsense").status_code == 404


def test_a_plot_is_drawn_anew_when_there_is_news_and_not_before(ada: Person, site: Served) -> None:
    first = ada.get("/studies/searching/plots/history")
    again = {"if-none-match": first.headers["etag"]}
    with counted() as said:
        assert ada.get("/studies/searching/plots/history", headers=again).status_code == 304
    assert not [each for each in said if "tempopt_measurement" in each]
    study = site.store.load_study("searching")
    site.store.withdraw(study.id, ["search"])
    assert ada.get("/studies/searching/plots/history", headers=again).status_code == 200


def test_a_study_that_was_read_is_not_read_again_before_there_is_news(site: Served) -> None:
    results = Results(site.store)
    study = site.store.load_study("searching")
    rows = site.store.tickets(study.id)
    first = results.of(study, rows)
    with counted() as said:
        assert results.of(study, rows) is first
    assert not said
    site.store.withdraw(study.id, ["search"])
    study, rows = site.store.load_study("searching"), site.store.tickets(study.id)
    assert mark(study, rows) != first[0]
    assert results.of(study, rows)[1].tickets["search"].withdrawn == 9


def test_the_report_and_the_code_are_a_click_away(ada: Person) -> None:
    report = ada.get("/studies/pairs/report").text
    assert "<h1>pairs</h1>" in report and "Content-Security-Policy" in report
    answer = ada.get("/studies/pairs/export.yaml")
    assert answer.headers["content-disposition"] == 'attachment; filename="pairs.yaml"'
    assert yaml.safe_load(answer.text)
    code = ada.get("/studies/no-gain.v2/export.py").text
    compile(code, "export.py", "exec")
    assert ada.get("/studies/pairs/export.sh").status_code == 404


def test_a_study_leads_to_its_page_in_optunas_dashboard(ada: Person, site: Served) -> None:
    missing = ada.get("/studies/pairs/optuna")
    assert missing.status_code == 404 and "Optuna has no study" in missing.text
    spec = site.store.load_study("pairs").spec["study"]
    optuna_calls.make_study(site.store.url, name="pairs", direction=spec["direction"], metric=spec["metric"])
    number = site.store.page_attributes("none")["pairs"][0]
    assert ada.get("/studies/pairs/optuna").headers["location"] == f"/dashboard/studies/{number}"


def test_who_may_not_change_a_study_is_shown_no_way_to_and_has_none(
    sign_in: Callable[..., Person], site: Served
) -> None:
    viewer = sign_in("view")
    text = viewer.get("/studies/searching").text
    assert not re.findall(r'action="/studies/[^"]*/(?:pause|resume|stop|retry|grow|place|delete)"', text)
    for verb, fields in WRITES.items():
        answer = viewer.submit(f"/studies/searching/{verb}", **fields)
        assert answer.status_code == 403 and "forbidden" in answer.text, verb
    assert site.store.load_study("searching").state == "running"


def test_no_form_of_another_page_changes_a_study(ada: Person, site: Served) -> None:
    own = {"csrf": ada.csrf()}
    evil = {"origin": "https://evil.example"}
    for verb, fields in WRITES.items():
        path = f"/studies/searching/{verb}"
        assert ada.post(path, data=fields, headers=ada.origin).status_code == 403, verb
        assert ada.post(path, data={**fields, "csrf": "0" * 64}, headers=ada.origin).status_code == 403
        assert ada.post(path, data={**fields, **own}, headers=evil).status_code == 403
        assert ada.post(path, data={**fields, **own}).status_code == 403
        assert ada.get(path).status_code in (404, 405)
    study = site.store.load_study("searching")
    assert (study.state, study.version, study.queue) == ("running", 0, "vision")


def test_a_study_is_paused_resumed_and_stopped(ada: Person, site: Served) -> None:
    answer = ada.submit("/studies/searching/pause")
    assert answer.headers["location"] == "/studies/searching?done=paused"
    assert site.store.load_study("searching").state == "paused"
    assert "The study pauses" in ada.get(answer.headers["location"]).text
    ada.submit("/studies/searching/resume")
    assert site.store.load_study("searching").state == "running"
    ada.submit("/studies/searching/stop")
    rows = site.store.tickets(site.store.load_study("searching").id, ["search"])
    assert [each.state for each in rows].count("withdrawn") == 9
    assert "<b>no" not in ada.get("/studies/searching", params={"done": "<b>no</b>"}).text


def test_trials_are_added_once_however_often_the_form_is_sent(ada: Person, site: Served) -> None:
    version = re.search(r'name="version" value="(\d+)"', ada.get("/studies/searching").text)
    assert version is not None
    answers = [ada.submit("/studies/searching/grow", trials="+3", version=version[1]) for _ in range(2)]
    assert [each.status_code for each in answers] == [303, 409]
    assert "study_changed" in answers[1].text
    assert len(site.store.tickets(site.store.load_study("searching").id, ["search"])) == 27


def test_pairs_are_added_to_a_verdict(ada: Person, site: Served) -> None:
    study = site.store.load_study("pairs")
    before = len(site.store.tickets(study.id, ["confirm"]))
    assert ada.submit("/studies/pairs/grow", pairs="2", version=f"{study.version}").status_code == 303
    assert len(site.store.tickets(study.id, ["confirm"])) > before
    assert site.store.load_study("pairs").state == "running"


def test_failed_runs_are_repeated(ada: Person, site: Served) -> None:
    assert "/studies/losing/retry" in ada.get("/studies/losing").text
    assert "/studies/searching/retry" not in ada.get("/studies/searching").text
    assert ada.submit("/studies/losing/retry").status_code == 303
    rows = site.store.tickets(site.store.load_study("losing").id)
    assert not [each for each in rows if each.state == "failed"]


@pytest.mark.parametrize("number", ["", "0", "-1", "1.5", "1e3", "ten", "10001", "9" * 30, "٣", "0x10"])
def test_a_number_that_is_none_is_refused_in_words(ada: Person, site: Served, number: str) -> None:
    answer = ada.submit("/studies/searching/grow", trials=number, version="0")
    assert answer.status_code == 422
    assert "Give a whole number from 1 to 10000" in answer.text
    assert len(site.store.tickets(site.store.load_study("searching").id, ["search"])) == 24


def test_a_study_is_moved_to_another_queue_and_priority(
    ada: Person, sign_in: Callable[..., Person], site: Served
) -> None:
    assert ada.submit("/studies/searching/place", queue="text", priority="7").status_code == 303
    study = site.store.load_study("searching")
    assert (study.queue, study.priority) == ("text", 7)
    assert ada.submit("/studies/searching/place", queue="<b>", priority="7").status_code == 422
    other = sign_in("submit")
    refused = other.submit("/studies/searching/place", queue="text", priority="8")
    assert refused.status_code == 403 and "at most" in refused.text
    # a priority that stays as it is was allowed to somebody
    assert other.submit("/studies/searching/place", queue="text", priority="7").status_code == 303
    # and is not taken along into another queue
    assert other.submit("/studies/searching/place", queue="vision", priority="7").status_code == 403
    assert other.submit("/studies/searching/place", queue="vision", priority="0").status_code == 303
    assert site.store.load_study("searching").queue == "vision"


def test_a_study_is_deleted_by_its_name_alone(ada: Person, site: Served) -> None:
    wrong = ada.submit("/studies/losing/delete", confirm="losin")
    assert wrong.status_code == 400 and "nothing was deleted" in wrong.text
    assert ada.submit("/studies/losing/delete", confirm="losing").headers["location"] == "/?done=deleted"
    text = ada.get("/?done=deleted").text
    assert "The study is deleted." in text and "losing" not in text
    busy = ada.submit("/studies/searching/delete", confirm="searching")
    assert busy.status_code == 400 and "is being worked on" in busy.text
    assert ada.submit("/studies/searching/delete", confirm="searching", force="on").status_code == 303
    assert {each.study.name for each in site.store.list_studies()} & {"losing", "searching"} == set()


def test_changes_are_audited_with_their_study(ada: Person, site: Served) -> None:
    ada.submit("/studies/searching/pause")
    ada.submit("/studies/searching/grow", trials="3", version="0")
    rows = site.store.audited(study="searching")
    assert [(each.action, each.name, each.detail) for each in rows] == [
        ("POST /studies/searching/grow", "ada", "3 trials more"),
        ("POST /studies/searching/pause", "ada", ""),
    ]
