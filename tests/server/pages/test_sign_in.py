"""Signing in: what the browser holds, what it is worth, and that it opens no door that tokens do not."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from starlette.testclient import TestClient

from tempopt.server.app import create_app
from tempopt.server.auth import FRESH_SECONDS, Access
from tempopt.server.failures import Failures
from tempopt.server.sessions import LIFE, Sessions, csrf_token, is_csrf_token
from tempopt.server.tokens import made
from tempopt.store import Store
from tests.server.conftest import Served
from tests.server.pages.conftest import Person


def _held(answer: httpx.Response) -> tuple[str, str, dict[str, str]]:
    """Return name, value and attributes of the one cookie that an answer sets."""
    [(name, morsel)] = SimpleCookie(answer.headers["set-cookie"]).items()
    return name, morsel.value, {key: str(value) for key, value in morsel.items() if value}


def _error(answer: httpx.Response) -> str:
    found = re.search(r'role="alert"[^>]*>([^<]*)<', answer.text)
    return "" if found is None else found[1]


def test_whoever_is_unknown_is_asked_for_a_token_and_led_on(visitor: Person, site: Served) -> None:
    asked = visitor.get("/studies/pairs?stage=search")
    assert asked.status_code == 401
    assert 'value="/studies/pairs?stage=search"' in asked.text
    assert "pairs" not in re.sub(r'value="[^"]*"', "", asked.text)
    answer = visitor.sign_in(site.token, "/studies/pairs?stage=search")
    assert (answer.status_code, answer.headers["location"]) == (303, "/studies/pairs?stage=search")
    assert "Gain shown" in visitor.get("/studies/pairs").text


def test_the_browser_holds_no_token_and_no_script_reads_what_it_holds(visitor: Person, site: Served) -> None:
    name, value, attributes = _held(visitor.sign_in(site.token))
    assert name == f"tempopt-{site.url.rpartition(':')[2]}"
    assert value not in site.token and site.token not in value and len(value) == 43
    assert attributes.keys() == {"httponly", "path", "samesite", "expires"}
    assert (attributes["samesite"], attributes["path"]) == ("strict", "/")
    database = Path(site.storage.removeprefix("sqlite:///")).parent
    kept = b"".join(each.read_bytes() for each in database.iterdir() if each.is_file())
    assert value.encode() not in kept


def test_over_tls_the_cookie_is_sent_over_tls_alone(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as store:
        token, _ = made(store, name="ada", scopes=["view"])
        app = create_app(store, checkpoints=tmp_path.as_uri())
        with TestClient(app, base_url="https://studies.example", follow_redirects=False) as client:
            form = {"token": token, "then": "/"}
            answer = client.post("/sign-in", data=form, headers={"origin": "https://studies.example"})
            name, _, attributes = _held(answer)
            assert name == "__Host-tempopt-443"
            assert "secure" in attributes and "domain" not in attributes
            assert client.get("/", headers={"accept": "text/html"}).status_code == 200


@pytest.mark.parametrize("told", ["https", "http"])
def test_a_trusted_proxy_says_that_it_was_asked_over_tls(tmp_path: Path, told: str) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as store:
        token, _ = made(store, name="ada", scopes=["view"])
        for proxies, secure in (((ip_network("127.0.0.1"),), told == "https"), ((), False)):
            app = create_app(store, checkpoints=tmp_path.as_uri(), access=Access(proxies=proxies))
            with TestClient(app, client=("127.0.0.1", 5), follow_redirects=False) as client:
                headers = {"origin": "http://testserver", "x-forwarded-proto": told}
                answer = client.post("/sign-in", data={"token": token}, headers=headers)
                assert ("secure" in _held(answer)[2]) is secure


@pytest.mark.parametrize(
    ("token", "status", "message"),
    [
        ("", 401, "does not know"),
        ("x" * 5000, 401, "does not know"),
        ("tempopt_000000000000_" + "a" * 43, 401, "does not know"),
        ("revoked", 401, "was revoked"),
        ("expired", 401, "has expired"),
        ("agent", 403, "may agent; this asks for view"),
    ],
)
def test_a_token_that_is_not_valid_is_refused_in_the_words_of_the_rest(
    visitor: Person, site: Served, token: str, status: int, message: str
) -> None:
    if token == "agent":
        token = site.new_token("agent")
    elif token in ("revoked", "expired"):
        life = timedelta(seconds=-1) if token == "expired" else None
        token, row = made(site.store, name="old", scopes=["view"], life=life)
        if life is None:
            site.store.revoke_token(row.id)
    refused = visitor.sign_in(token, "/pool")
    assert refused.status_code == status
    assert message in _error(refused)
    assert 'name="then" value="/pool"' in refused.text
    assert "set-cookie" not in refused.headers
    if status == 401 and token:
        rest = httpx.get(f"{site.url}/api/me", headers={"authorization": f"Bearer {token}"}, timeout=60)
        assert rest.json()["error"]["message"] == _error(refused)


def test_who_tries_many_tokens_waits_and_a_valid_one_is_taken_all_the_same(
    visitor: Person, site: Served
) -> None:
    answers = [visitor.sign_in(f"wrong {number}") for number in range(Failures.FREE + 2)]
    assert {each.status_code for each in answers[: Failures.FREE]} == {401}
    assert answers[-1].status_code == 429
    assert "retry-after" in answers[-1].headers
    assert "Too many requests" in _error(answers[-1])
    assert visitor.sign_in(site.token).status_code == 303


def test_looking_without_a_token_costs_no_waiting(visitor: Person) -> None:
    assert {visitor.get("/").status_code for _ in range(3 * Failures.FREE)} == {401}


@pytest.mark.parametrize(
    "then",
    [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "/\t/evil.example",
        "\\\\evil",
        "javascript:alert(1)",
        "",
    ],
)
def test_signing_in_leads_to_no_other_site(visitor: Person, site: Served, then: str) -> None:
    assert visitor.sign_in(site.token, then).headers["location"] == "/"
    asked = visitor.get("/sign-in", params={"then": then})
    assert 'name="then" value="/"' in asked.text


def test_the_page_of_another_site_signs_nobody_in(visitor: Person, site: Served) -> None:
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {}):
        answer = visitor.post("/sign-in", data={"token": site.token}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def test_who_signs_out_is_out_on_every_server(ada: Person, site: Served) -> None:
    stolen = dict(ada.cookies)
    assert ada.submit("/sign-out").headers["location"] == "/sign-in"
    assert not ada.cookies
    with httpx.Client(base_url=site.url, cookies=stolen, timeout=60) as thief:
        assert thief.get("/api/me").json()["error"]["code"] == "session_ended"
    other = Sessions(site.store, time.monotonic, fresh=FRESH_SECONDS)
    assert other.token_of(next(iter(stolen.values()))) is None


def test_a_session_ends_with_its_token(ada: Person, site: Served) -> None:
    site.store.revoke_token(site.token.split("_")[1])
    time.sleep(FRESH_SECONDS + 0.1)
    answer = ada.get("/")
    assert answer.status_code == 401
    assert "was revoked" in _error(answer)
    assert ada.get("/api/me", headers={"accept": "*/*"}).json()["error"]["code"] == "token_revoked"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as found:
        yield found


def test_a_session_lives_no_longer_than_it_may_nor_than_its_token(store: Store) -> None:
    clock = SimpleNamespace(now=5.0)
    sessions, now = Sessions(store, lambda: clock.now, fresh=3.0), datetime.now(UTC)
    _, expires = sessions.begin("a", until=None)
    assert timedelta(0) <= expires - now - LIFE < timedelta(minutes=1)
    soon = now + timedelta(hours=1)
    secret, expires = sessions.begin("a", until=soon)
    assert expires == soon
    assert sessions.token_of(secret) == "a"
    over, _ = sessions.begin("a", until=now - timedelta(seconds=1))
    assert sessions.token_of(over) is None


def test_a_session_that_is_known_is_not_read_again_for_a_while(store: Store) -> None:
    clock = SimpleNamespace(now=5.0)
    here, there = (Sessions(store, lambda: clock.now, fresh=3.0) for _ in range(2))
    secret, _ = here.begin("a", until=None)
    assert here.asks_store(secret) and here.token_of(secret) == "a" and not here.asks_store(secret)
    there.end(secret)
    assert here.token_of(secret) == "a"
    clock.now += 3.1
    assert here.asks_store(secret)
    assert here.token_of(secret) is None


def test_what_proves_a_page_is_of_one_session_alone() -> None:
    assert is_csrf_token(csrf_token("a"), "a")
    assert not is_csrf_token(csrf_token("a"), "b")
    assert not is_csrf_token("", "a") and not is_csrf_token("ü\ud800", "a")
    assert "a" * 43 not in csrf_token("a" * 43)


def test_a_session_changes_over_rest_only_what_its_own_pages_ask_for(ada: Person, site: Served) -> None:
    path, proof = "/api/studies/searching/pause", {"x-csrf-token": ada.csrf()}
    for headers in (
        {},
        proof,
        {**ada.origin},
        {**ada.origin, "x-csrf-token": "0" * 64},
        {**proof, "origin": "https://evil.example"},
        {**proof, **ada.origin, "sec-fetch-site": "cross-site"},
        {**proof, **ada.origin, "sec-fetch-site": "same-site"},
    ):
        assert ada.post(path, headers=headers).json()["error"]["code"] == "forbidden", headers
    assert site.store.load_study("searching").state == "running"
    assert ada.post(path, headers={**proof, **ada.origin}).status_code == 200
    assert site.store.load_study("searching").state == "paused"


def test_a_token_beside_a_session_counts_alone(ada: Person, site: Served) -> None:
    headers = {"authorization": f"Bearer {site.new_token('view')}"}
    assert ada.get("/api/me", headers=headers).json()["name"] == "other"
    wrong = {"authorization": "Bearer nonsense"}
    assert ada.get("/api/me", headers=wrong).json()["error"]["code"] == "token_unknown"


def test_people_of_a_proxy_need_no_form_and_their_changes_come_from_pages_of_ours(tmp_path: Path) -> None:
    access = Access(proxies=(ip_network("127.0.0.1"),), people={"*": "submit"})
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as store:
        app = create_app(store, checkpoints=tmp_path.as_uri(), access=access)
        with TestClient(app, client=("127.0.0.1", 5), headers={"accept": "text/html"}) as client:
            person = {"x-forwarded-email": "ada@example.com"}
            page = client.get("/", headers=person)
            assert page.status_code == 200
            assert "ada@example.com" in page.text and "Sign out" not in page.text
            assert client.get("/").status_code == 401
            foreign = {**person, "origin": "https://evil.example"}
            assert client.post("/studies/x/pause", headers=foreign).status_code == 403
            own = {**person, "origin": "http://testserver"}
            assert client.post("/studies/x/pause", headers=own).status_code == 404


def test_who_follows_a_link_of_another_site_comes_in_at_the_second_request(ada: Person, site: Served) -> None:
    cross = {"sec-fetch-site": "cross-site"}
    with Person(site) as without:
        first = without.get("/studies/pairs", headers=cross)
        assert 'content="0; url=/studies/pairs"' in first.text and first.status_code == 200
        assert "Gain" not in first.text
        assert without.post("/studies/pairs/pause", headers=cross).status_code == 401
    assert "Gain shown" in ada.get("/studies/pairs", headers={"sec-fetch-site": "same-origin"}).text


def test_signing_in_and_out_is_audited_without_what_opens_doors(ada: Person, site: Served) -> None:
    secret = next(iter(ada.cookies.values()))
    ada.submit("/sign-out")
    ada.sign_in("wrong-token")
    rows = site.store.audited()
    assert [(each.action, each.status, each.name) for each in rows[:3]] == [
        ("POST /sign-in", 401, ""),
        ("POST /sign-out", 303, "ada"),
        ("POST /sign-in", 303, "ada"),
    ]
    assert site.token not in repr(rows) and secret not in repr(rows) and "wrong-token" not in repr(rows)


def test_every_page_says_what_a_browser_may_do_with_it(ada: Person, sign_in: Callable[..., Person]) -> None:
    for path in (
        "/",
        "/studies/pairs",
        "/studies/pairs/runs/search-0",
        "/pool",
        "/sign-in",
        "/studies/nobody",
    ):
        headers = ada.get(path).headers
        policy = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'" and policy["script-src"] == "'self'", path
        assert (policy["frame-ancestors"], policy["base-uri"]) == ("'none'", "'none'")
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"
    assert ada.get("/studies/pairs/report").headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("host", ["[", "a:99999", "a:99999999", "a:b", "::1", "a:²", "", "x" * 5000])
def test_whatever_a_client_calls_the_server_it_is_asked_for_a_token(visitor: Person, host: str) -> None:
    answer = visitor.get("/studies/pairs?x=%2F", headers={"host": host.encode()})
    assert answer.status_code in (400, 401)
    if answer.status_code == 401:
        assert 'name="then" value="/studies/pairs?x=%2F"' in answer.text
    rest = visitor.get("/api/me", headers={"host": host.encode(), "accept": "*/*"})
    assert rest.status_code in (400, 401)


@pytest.mark.parametrize("body", [b"\xff\xfe", b"&".join(b"a=1" for _ in range(200)), b"token=%00"])
def test_a_form_that_is_none_is_refused_in_words(visitor: Person, body: bytes) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded"}
    answer = visitor.post("/sign-in", content=body, headers={**visitor.origin, **kind})
    assert answer.status_code in (400, 401)
    assert "<h1" in answer.text
    other = visitor.post("/sign-in", content=b"{}", headers={**visitor.origin, "content-type": "text/json"})
    assert other.status_code == 415
