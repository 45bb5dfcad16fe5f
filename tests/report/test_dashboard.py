"""The dashboard over real HTTP: what it shows, to whom, and what it refuses."""

from __future__ import annotations

import base64
import gc
import json
import logging
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request

import pytest

from tempopt.errors import StorageError, StudyNotFound, UsageError
from tempopt.report.dashboard.access import Access
from tempopt.report.dashboard.dashboard import Dashboard, masking
from tempopt.report.dashboard.server import Server, listen
from tempopt.report.dashboard.study_page import publish
from tempopt.store import urls
from tempopt.store.artifacts import curve_id
from tempopt.store.store import Store
from tests.report.dashboard_rows import write_whole
from tests.report.made_study import World

TOKEN = "a-token-long-enough"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a finished study, whose page is there."""
    url = f"sqlite:///{tmp_path_factory.mktemp('dashboard') / 'studies.db'}"
    write_whole(url, World(trials=12))
    with Store.open(url) as store:
        publish(store, "pairs")
    return url


@pytest.fixture(scope="module")
def served(url: str) -> Iterator[Dashboard]:
    with Dashboard(url, port=0) as dashboard:
        yield dashboard


class Answer:
    """Status, headers and body of a request; an error is an answer as well."""

    def __init__(self, request: Request) -> None:
        try:
            with urllib.request.urlopen(request, timeout=600) as found:
                self.status, self.headers, self.body = found.status, dict(found.headers), found.read()
        except urllib.error.HTTPError as error:
            with error:
                self.status, self.headers, self.body = error.code, dict(error.headers), error.read()


def ask(address: str, method: str = "GET", data: Any = None, **headers: str) -> Answer:
    """Return what a dashboard answers."""
    body = None if data is None else json.dumps(data).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        named["Content-Type"] = "application/json"
    return Answer(Request(address, data=body, method=method, headers=named))


@pytest.mark.parametrize("path", ["/dashboard", "/dashboard/studies/1", "/static/bundle.js", "/csv/1"])
def test_the_pages_are_there(served: Dashboard, path: str) -> None:
    answer = ask(served.url + path, Accept_Encoding="identity")
    assert answer.status == 200 and answer.body


def test_the_one_study_is_named_in_the_address(served: Dashboard) -> None:
    assert served.study_url == f"{served.url}/dashboard/studies/1"
    assert ask(served.study_url).status == 200


def test_plots_note_curves_and_numbers_are_in_the_study(served: Dashboard) -> None:
    study = json.loads(ask(f"{served.url}/api/studies/1").body)
    plots = {plot["id"]: json.loads(plot["graph_object"]) for plot in study["plotly_graph_objects"]}
    assert {"tempopt-history", "tempopt-schedule", "tempopt-differences"} <= plots.keys()
    assert all(plot["data"] and plot["layout"]["title"]["text"] for plot in plots.values())
    assert "### What was found\n\n**Gain shown\\: val\\_accuracy is higher by" in study["note"]["body"]
    assert study["objective_names"] == ["val_accuracy"]
    assert {"key": "tau_final", "sortable": True} in study["union_user_attrs"]
    first = study["trials"][0]
    (artifact,) = first["artifacts"]
    assert artifact["mimetype"] == "image/svg+xml"
    picture = ask(f"{served.url}/artifacts/1/{first['trial_id']}/{artifact['artifact_id']}")
    assert picture.status == 200 and b"<svg" in picture.body
    assert picture.headers["Content-Security-Policy"].startswith("sandbox")
    assert "Access-Control-Allow-Origin" not in picture.headers


def test_every_curve_has_the_id_of_its_ticket(served: Dashboard, url: str) -> None:
    with Store.open(url) as store:
        tickets = store.tickets(store.load_study("pairs").id, ["search"])
    trials = json.loads(ask(f"{served.url}/api/studies/1").body)["trials"]
    assert [t["artifacts"][0]["artifact_id"] for t in trials] == [curve_id(t.id) for t in tickets]


def test_a_study_is_neither_deleted_nor_renamed_here(served: Dashboard, url: str) -> None:
    for method, path, data in (
        ("DELETE", "/api/studies/1", {}),
        ("POST", "/api/studies/1/rename", {"study_name": "other"}),
        ("POST", "/api/trials/20/tell", {"state": "fail"}),
    ):
        answer = ask(served.url + path, method, data)
        assert answer.status == 403
        assert "tempopt delete NAME" in json.loads(answer.body)["reason"]
    study = json.loads(ask(f"{served.url}/api/studies/1").body)
    assert (study["name"], len(study["trials"])) == ("pairs", 12)


def test_a_person_may_write_a_note(served: Dashboard) -> None:
    trial = json.loads(ask(f"{served.url}/api/studies/1").body)["trials"][0]["trial_id"]
    path = f"{served.url}/api/studies/1/{trial}/note"
    assert ask(path, "PUT", {"version": 1, "body": "mine"}).status == 204
    assert ask(path, "PUT", {"version": 2, "body": "theirs"}, Origin="http://evil.example").status == 403
    study = json.loads(ask(f"{served.url}/api/studies/1").body)
    assert study["trials"][0]["note"]["body"] == "mine"


def test_a_foreign_name_for_this_machine_is_refused(served: Dashboard) -> None:
    assert ask(f"{served.url}/api/studies", Host="evil.example").status == 403


def test_who_has_no_secret_sees_nothing(url: str) -> None:
    with Dashboard(url, port=0, access=Access(user="me", password="long enough to do")) as dashboard:
        right = "Basic " + base64.b64encode(b"me:long enough to do").decode()
        wrong = "Basic " + base64.b64encode(b"me:long enough to dO").decode()
        for path in ("/dashboard", "/api/studies/1", "/static/bundle.js", "/artifacts/1/2/a"):
            assert ask(dashboard.url + path).status == 401
            assert ask(dashboard.url + path, Authorization=wrong).status == 401
        assert ask(f"{dashboard.url}/api/studies/1", Authorization=right).status == 200


def test_an_address_that_others_reach_is_served_to_those_who_have_the_token(url: str) -> None:
    with pytest.raises(UsageError, match="open to everybody who reaches 0.0.0.0"):
        Dashboard(url, host="0.0.0.0", port=0)
    with Dashboard(url, host="0.0.0.0", port=0, access=Access(token=TOKEN)) as dashboard:
        here = f"http://127.0.0.1:{dashboard.url.rpartition(':')[2]}"
        assert ask(f"{here}/api/studies").status == 401
        assert ask(f"{here}/api/studies", Authorization=f"Bearer {TOKEN}").status == 200
        welcome = ask(f"{here}/dashboard?token={TOKEN}")
        cookie = welcome.headers["Set-Cookie"].partition(";")[0]
        assert ask(f"{here}/api/studies", Cookie=cookie, Host="some.name").status == 200


def test_a_port_that_is_taken_is_told_with_what_to_do(url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} of 127.0.0.1 is taken.*--port 0"):
            Dashboard(url, port=port)


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70000, "70000 is no port. Give a number from 1 to 65535"),
        ("no.such.host.invalid", 0, "is not known here"),
        ("192.0.2.1", 0, "is no address of this machine"),
    ],
)
def test_an_address_that_is_not_to_be_had_is_told(url: str, host: str, port: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Dashboard(url, host=host, port=port, access=Access(token=TOKEN))


def test_what_is_not_there_is_told(url: str, tmp_path: Path) -> None:
    with pytest.raises(StudyNotFound, match='Unknown study "pair".*pairs'):
        Dashboard(url, port=0, first="pair")
    with pytest.raises(StorageError):
        Dashboard(f"sqlite:///{tmp_path / 'none.db'}", port=0)


def test_the_port_is_free_again_when_it_has_ended(url: str) -> None:
    with Dashboard(url, port=0) as dashboard:
        port = int(dashboard.url.rpartition(":")[2])
        ask(f"{dashboard.url}/api/studies")
    with Dashboard(url, port=port) as dashboard:
        assert ask(f"{dashboard.url}/api/studies").status == 200


MARKUP = "<script>alert(1)</script>"
HOSTILE = {
    "markup": World(trials=12, study={"metric": MARKUP}, search={"name": {"choices": [MARKUP, "| a | b |"]}}),
    "long names": World(trials=12, search={"p" * 500: {"low": 0.0, "high": 1.0}}),
    "nan": World(trials=12, nan=True),
    "only pruned": World(trials=12, ends=("pruned",), confirmed=False),
    "none finished": World(trials=12, ends=("failed", "diverged"), confirmed=False),
}


@pytest.fixture
def show(tmp_path: Path) -> Callable[[World], dict[str, Any]]:
    """Return a study as the dashboard has it, its page written."""

    def shown(world: World) -> dict[str, Any]:
        url = f"sqlite:///{tmp_path / 'hostile.db'}"
        write_whole(url, world)
        with Store.open(url) as store:
            assert publish(store, "pairs") > 0
        with Dashboard(url, port=0) as dashboard:
            assert dashboard.study_url is not None
            answer = ask(dashboard.study_url.replace("/dashboard/", "/api/"))
        assert answer.status == 200
        found: dict[str, Any] = json.loads(answer.body)
        return found

    return shown


def test_no_logger_below_repeats_the_password_and_none_is_changed_in_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = ("optuna_dashboard._app", "optuna_dashboard._bottle_util", "waitress", "optuna.storages")
    before = {name: list(logging.getLogger(name).filters) for name in names}
    told = urls.parse("postgresql://me:zqx%40kvw@host/studies")

    def log(name: str) -> None:
        try:
            raise ConnectionError("postgresql://me:zqx%40kvw@host/studies is away")
        except ConnectionError:
            logging.getLogger(name).exception("asked with %s", "zqx@kvw")

    above = logging.getLogger("optuna")
    caplog.handler.setFormatter(logging.Formatter())
    above.addHandler(caplog.handler)
    try:
        with masking(urls.parse("other.db")), masking(told):
            for name in names:
                log(name)
    finally:
        above.removeHandler(caplog.handler)
    assert "zqx" not in caplog.text
    assert caplog.text.count("asked with ***") >= len(names)
    assert caplog.text.count("ConnectionError: postgresql://me:***@host/studies is away") >= len(names)
    assert {name: logging.getLogger(name).filters for name in names} == before


def test_a_dashboard_that_is_closed_leaves_no_filter_behind(url: str) -> None:
    logger = logging.getLogger("optuna_dashboard._app")
    before = list(logger.filters)
    with Dashboard(url, port=0):
        assert len(logger.filters) == len(before) + 1
    assert logger.filters == before


def test_a_server_that_is_closed_leaves_nothing_open_of_what_nobody_read() -> None:
    sent = threading.Event()

    def much(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        for _ in range(64):
            yield bytes(1 << 18)
        sent.set()

    bound = listen("127.0.0.1", 0)
    with socket.create_connection(bound.getsockname()) as asking:
        server = Server(much, bound, may_send=lambda environ: False)
        asking.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert sent.wait(30)
        server.close()
    del server
    # a file that was left open warns now, and a warning fails the test
    gc.collect()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_study_is_shown(name: str, show: Any) -> None:
    world = HOSTILE[name]
    study = show(world)
    assert len(study["trials"]) == world.trials
    # outside of code nothing is markup that was not escaped
    prose = re.sub(r"```python\n.*?\n```", "", study["note"]["body"], flags=re.DOTALL)
    assert not re.search(r"(?<!\\)[<|]script", prose)
    for plot in study["plotly_graph_objects"]:
        json.loads(plot["graph_object"])
        assert "<script" not in plot["graph_object"]


@pytest.mark.long
def test_ten_thousand_trials_have_plots_that_are_small(show: Any) -> None:
    study = show(World(trials=10_000, reports=4))
    assert len(study["trials"]) == 10_000
    sizes = {plot["id"]: len(plot["graph_object"]) for plot in study["plotly_graph_objects"]}
    assert {"tempopt-history", "tempopt-schedules", "tempopt-landscape"} <= sizes.keys()
    assert max(sizes.values()) <= 16 * 2045
