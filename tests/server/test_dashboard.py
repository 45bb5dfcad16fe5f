"""Optuna's dashboard behind a server: who sees which study, what is written, and how little is read."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from optuna.storages import RDBStorage
from sqlalchemy import event

from tempopt.report.dashboard import mounted, mounted_page
from tempopt.server.app import create_app
from tempopt.server.tokens import made
from tempopt.store import Store
from tempopt.store.optuna_calls import make_study
from tests.report.dashboard_rows import write_whole
from tests.report.made_study import World
from tests.server.conftest import Served, listening
from tests.server.test_studies import asking

OURS, THEIRS = "vision-a", "secret-b"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with finished studies of two teams, and an Optuna study of somebody else's program."""
    path = tmp_path_factory.mktemp("dashboard") / "studies.db"
    for number, name in enumerate((OURS, THEIRS)):
        world = World(trials=6, layers=0, study={"name": name})
        write_whole(f"sqlite:///{path}", world, first_id=1 + 1000 * number)
    with Store.open(f"sqlite:///{path}") as store:
        make_study(store.url, name="foreign", direction="minimize", metric="loss")
    return path


@pytest.fixture
def site(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server on a copy of that database, whose pages nobody draws anew."""
    monkeypatch.setattr(mounted._Pages, "look", lambda pages, study: None)
    shutil.copy(filled, tmp_path / "studies.db")
    storage = f"sqlite:///{tmp_path / 'studies.db'}"
    with Store.open(storage) as store:
        app = create_app(store, checkpoints=(tmp_path / "checkpoints").as_uri())
        token, _ = made(store, name="admin", scopes=["admin"])
        with listening(app) as url:
            yield Served(url=url, storage=storage, store=store, checkpoints=tmp_path, app=app, token=token)
        app.state.dashboard.close()


@pytest.fixture
def admin(site: Served) -> Iterator[httpx.Client]:
    with asking(site, site.token) as client:
        yield client


@pytest.fixture
def visitor(site: Served) -> Iterator[httpx.Client]:
    """Who may see, and write of, the studies of one team alone."""
    with asking(site, site.new_token("submit", studies="vision-")) as client:
        yield client


def ids(admin: httpx.Client) -> dict[str, int]:
    """Return Optuna's ids of the studies by name."""
    told = admin.get("/dashboard/api/studies").json()["study_summaries"]
    return {each["study_name"]: each["study_id"] for each in told}


def trials(admin: httpx.Client, id: int) -> list[dict[str, Any]]:
    """Return a study's trials."""
    found: list[dict[str, Any]] = admin.get(f"/dashboard/api/studies/{id}").json()["trials"]
    return found


def test_a_study_has_its_trials_plots_and_pictures(admin: httpx.Client) -> None:
    known = ids(admin)
    assert set(known) == {OURS, THEIRS}
    detail = admin.get(f"/dashboard/api/studies/{known[OURS]}?after=2").json()
    assert [each["number"] for each in detail["trials"]] == [2, 3, 4, 5]
    table = admin.get(f"/dashboard/csv/{known[OURS]}")
    assert len(table.text.strip().splitlines()) == 7
    assert admin.get(f"/dashboard/api/studies/{known[OURS]}/plot/slice").status_code == 200
    trial = detail["trials"][0]
    picture = admin.get(
        f"/dashboard/artifacts/{known[OURS]}/{trial['trial_id']}/{trial['artifacts'][0]['artifact_id']}"
    )
    assert picture.text.startswith("<svg") or "<svg" in picture.text
    assert "sandbox" in picture.headers["content-security-policy"]
    assert "access-control-allow-origin" not in picture.headers


def test_the_page_asks_for_everything_below_its_path(admin: httpx.Client) -> None:
    page = admin.get("/dashboard/").text
    assert set(re.findall(r'(?:src|href)="(/[a-z]+/)', page)) <= {"/dashboard/", "/assets/"}
    script = re.search(r'src="(/dashboard/files/bundle.js[^"]*)"', page)
    assert script is not None
    answer = admin.get(script[1])
    assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]
    # every address in the script is below the path, or a page of the dashboard itself
    asked = set(re.findall(r"[`}\"'(](/(?:api|artifacts|csv|static)/)", answer.text))
    assert asked == set()
    for path in (f"/dashboard/studies/{ids(admin)[OURS]}", "/dashboard", "/dashboard/compare-studies"):
        assert admin.get(path).text == page


def test_an_optuna_dashboard_of_another_make_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mounted_page, "_ADDRESSES", {"there is no such text": ""})
    with pytest.raises(Exception, match=r"constraints\.txt"):
        mounted_page._bundle()


# ---- attacks


def test_a_token_with_a_prefix_finds_nothing_of_another_team(
    site: Served, admin: httpx.Client, visitor: httpx.Client
) -> None:
    known = ids(admin)
    ours, theirs = known[OURS], known[THEIRS]
    their_trials, our_trials = trials(admin, theirs), trials(admin, ours)
    picture = their_trials[0]["artifacts"][0]["artifact_id"]
    there = their_trials[0]["trial_id"]
    assert ids(visitor) == {OURS: ours}
    paths = [
        f"/api/studies/{theirs}",
        f"/api/studies/{theirs}?after=0",
        f"/api/studies/{theirs}/param_importances",
        f"/api/studies/{theirs}/plot/slice",
        f"/csv/{theirs}",
        f"/csv/{theirs}?trial_ids=0",
        f"/artifacts/{theirs}/{there}/{picture}",
        # their picture by way of a study that may be seen
        f"/artifacts/{ours}/{there}/{picture}",
        f"/artifacts/{ours}/{our_trials[0]['trial_id']}/{picture}",
        f"/artifacts/{ours}/{there}/{our_trials[0]['artifacts'][0]['artifact_id']}",
        f"/api/studies/{ours}/../{theirs}",
        f"/api/studies/{ours}%2F..%2F{theirs}",
        f"/api/studies/0{theirs}",
        f"/api/studies/{theirs}/",
        f"/api//studies/{theirs}",
    ]
    for path in paths:
        answer = visitor.get(f"/dashboard{path}")
        assert answer.status_code == 404, (path, answer.text[:200])
        assert THEIRS not in answer.text and "temperature_init" not in answer.text
    for path in (f"/dashboard/api/studies/{theirs}", "/dashboard/api/studies/99999"):
        told = visitor.get(path)
        assert told.json()["reason"] == f"study_id={path.rpartition('/')[2]} is not found"
    led = visitor.get("/dashboard/tempopt/studies")
    assert [each["name"] for each in led.json()] == [OURS]
    assert THEIRS not in led.text
    # what is asked of more than one study at a time is ours alone
    assert all(each["trial_id"] in {t["trial_id"] for t in our_trials} for each in trials(visitor, ours))


def test_an_optuna_study_that_is_none_of_tempopts_is_not_shown(site: Served, admin: httpx.Client) -> None:
    rows = RDBStorage(site.store.url)
    foreign = rows.get_study_id_from_name("foreign")
    rows.remove_session()
    rows.engine.dispose()
    assert admin.get(f"/dashboard/api/studies/{foreign}").status_code == 404
    assert "foreign" not in ids(admin)


def test_an_id_that_is_given_again_shows_nothing_of_the_study_before(
    site: Served, admin: httpx.Client, visitor: httpx.Client
) -> None:
    id = ids(admin)[OURS]
    assert len(trials(admin, id)) == 6
    # the last of Optuna's ids is free again when its study is deleted
    for name in (THEIRS, OURS):
        site.store.delete_study(name)
    rows = RDBStorage(site.store.url)
    rows.delete_study(rows.get_study_id_from_name("foreign"))
    rows.remove_session()
    rows.engine.dispose()
    make_study(site.store.url, name="vision-new", direction="maximize", metric="val_accuracy")
    spec = World(study={"name": "vision-new"}).spec()
    site.store.create_study("vision-new", spec.to_json(), spec.identity())
    detail = visitor.get(f"/dashboard/api/studies/{id}").json()
    assert detail["name"] == "vision-new", "the database gives no id again: this test shows nothing"
    assert (detail["trials"], detail["union_search_space"]) == ([], [])


def test_a_deleted_study_is_not_there_any_more(site: Served, admin: httpx.Client) -> None:
    id = ids(admin)[OURS]
    assert trials(admin, id)
    site.store.delete_study(OURS)
    assert admin.get(f"/dashboard/api/studies/{id}").status_code == 404


REFUSED = [
    ("POST", "/api/studies"),
    ("DELETE", "/api/studies/{id}"),
    ("POST", "/api/studies/{id}/rename"),
    ("POST", "/api/trials/{trial}/tell"),
    ("POST", "/api/trials/{trial}/user-attrs"),
    ("POST", "/api/artifacts/{id}/{trial}"),
    ("DELETE", "/api/artifacts/{id}/{trial}/{picture}"),
    ("PUT", "/api/studies/{id}/preference_feedback_component"),
    ("POST", "/api/studies/{id}/preference"),
    ("POST", "/api/studies/{id}/{trial}/skip"),
    ("POST", "/api/llm/trial_filter_query"),
    ("POST", "/incompatible-rdb-schema"),
]


def test_nothing_but_notes_is_written(site: Served, admin: httpx.Client) -> None:
    id = ids(admin)[OURS]
    before = trials(admin, id)
    picture = before[0]["artifacts"][0]["artifact_id"]
    body = {"study_name": "new", "state": "Fail", "directions": ["maximize"]}
    for method, path in REFUSED:
        filled = path.format(id=id, trial=before[0]["trial_id"], picture=picture)
        answer = admin.request(method, f"/dashboard{filled}", json=body)
        assert answer.status_code in (403, 405), (method, path, answer.text)
    assert trials(admin, id) == before
    assert set(ids(admin)) == {OURS, THEIRS}


def test_a_note_is_written_by_who_may_submit_and_has_a_line_in_the_audit_log(
    site: Served, admin: httpx.Client, visitor: httpx.Client
) -> None:
    known = ids(admin)
    note = {"version": 1000, "body": "seen"}
    with asking(site, site.new_token("view")) as viewer:
        assert viewer.put(f"/dashboard/api/studies/{known[OURS]}/note", json=note).status_code == 403
    assert visitor.put(f"/dashboard/api/studies/{known[THEIRS]}/note", json=note).status_code == 404
    for wrong in (
        b"{",
        b"[]",
        b'{"version": "1", "body": "a"}',
        b'{"version": 1, "body": 3}',
        b"[" * 100_000,
    ):
        answer = visitor.put(f"/dashboard/api/studies/{known[OURS]}/note", content=wrong)
        assert answer.status_code == 400, answer.text
    large = {"version": 1000, "body": "a" * 300_000}
    assert visitor.put(f"/dashboard/api/studies/{known[OURS]}/note", json=large).status_code == 413
    version = admin.get(f"/dashboard/api/studies/{known[OURS]}").json()["note"]["version"]
    written = visitor.put(
        f"/dashboard/api/studies/{known[OURS]}/note", json={"version": version + 1, "body": "seen"}
    )
    assert written.status_code == 204, written.text
    assert admin.get(f"/dashboard/api/studies/{known[OURS]}").json()["note"]["body"] == "seen"
    line = site.store.audited(study=OURS)[0]
    assert (line.action, line.status) == (f"PUT /dashboard/api/studies/{known[OURS]}/note", 204)


def test_a_browser_that_is_signed_in_writes_from_the_page_alone(site: Served, admin: httpx.Client) -> None:
    id = ids(admin)[OURS]
    version = admin.get(f"/dashboard/api/studies/{id}").json()["note"]["version"]
    note = {"version": version + 1, "body": "seen"}
    with httpx.Client(base_url=site.url, headers={"sec-fetch-site": "same-origin"}, timeout=60) as browser:
        browser.post("/sign-in", data={"token": site.new_token("submit")})
        for foreign in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}):
            refused = browser.put(f"/dashboard/api/studies/{id}/note", json=note, headers=foreign)
            assert refused.status_code == 403
        assert browser.put(f"/dashboard/api/studies/{id}/note", json=note).status_code == 204
    with httpx.Client(base_url=site.url, headers={"accept": "text/html"}, timeout=60) as stranger:
        for path in (
            "/dashboard/",
            "/dashboard/api/studies",
            f"/dashboard/csv/{id}",
            "/dashboard/files/bundle.js",
        ):
            assert stranger.get(path).status_code == 401


def test_nonsense_in_a_query_is_left_out_and_as_an_id_is_not_found(admin: httpx.Client) -> None:
    id = ids(admin)[OURS]
    for query in ("after=-1", "after=x", "after=99999999999999999999", "trial_ids=x", "a=1&a=2"):
        for path in (f"/api/studies/{id}", f"/csv/{id}"):
            assert admin.get(f"/dashboard{path}?{query}").status_code == 200, (path, query)
    for wrong in ("2147483648", "9999999999", "99999999999", "-1", "1e3", "x"):
        assert admin.get(f"/dashboard/api/studies/{wrong}").status_code == 404, wrong


# ---- how little is read


def test_a_look_at_a_study_reads_no_other(
    site: Served, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = ids(admin)[OURS]
    opened: mounted.MountedDashboard = site.app.state.dashboard.opened()
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        statements.append(" ".join(statement.split()))

    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError("all studies were read")

    for name in ("list_studies", "page_attributes", "totals"):
        monkeypatch.setattr(Store, name, refuse)
    event.listen(opened._rows.engine, "before_cursor_execute", note)
    try:
        for path in (f"/api/studies/{id}", f"/api/studies/{id}/plot/slice", f"/csv/{id}"):
            assert admin.get(f"/dashboard{path}").status_code == 200
    finally:
        event.remove(opened._rows.engine, "before_cursor_execute", note)
    of_studies = [each for each in statements if re.search(r"FROM stud", each)]
    assert of_studies
    assert all("WHERE" in each for each in of_studies), of_studies


def test_the_list_of_studies_is_read_once_for_all_who_look(
    site: Served, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids(admin)
    read: list[str] = []
    real = Store.page_attributes

    def counted(store: Store, key: str) -> Any:
        read.append(key)
        return real(store, key)

    monkeypatch.setattr(Store, "page_attributes", counted)
    monkeypatch.setattr(mounted, "_HEADLINE_SECONDS", 3600.0)
    for _ in range(5):
        ids(admin)
    assert len(read) <= 1


def test_a_page_is_brought_up_to_date_once_somebody_looks(site: Served, admin: httpx.Client) -> None:
    id = ids(admin)[OURS]
    opened: mounted.MountedDashboard = site.app.state.dashboard.opened()
    study = site.store.load_study(OURS)
    opened._pages._publish(study)
    # nobody draws it again within seconds
    assert opened._pages._next[study.id] > time.monotonic() + 10
    detail = admin.get(f"/dashboard/api/studies/{id}").json()
    assert any(each["id"] == "tempopt-history" for each in detail["plotly_graph_objects"])
