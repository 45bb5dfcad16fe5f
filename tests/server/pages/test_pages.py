"""The two pages, the form to sign in, and what a session allows."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tempopt.report.page import html as page_html
from tempopt.server import sessions
from tempopt.server.app import create_app
from tempopt.server.tokens import create_token
from tempopt.storage import Store
from tempopt.storage.opening import open_store
from tests.server.http_server import RunningServer
from tests.server.pages.conftest import Browser

_NAMES = re.compile(r'<th scope="row"><a href="/studies/([^"]*)">')


def _row(text: str, name: str) -> str:
    """Return the words in the row of a study."""
    row = text[text.index(f'<a href="/studies/{name}">') :]
    return " ".join(re.sub(r"<[^>]*>", " ", row[: row.index("</tr>")]).split())


def _cookie(response: httpx.Response) -> tuple[str, str, dict[str, str]]:
    """Return name, value and attributes of the one cookie that a response sets."""
    [(name, morsel)] = SimpleCookie(response.headers["set-cookie"]).items()
    return name, morsel.value, {key: str(value) for key, value in morsel.items() if value}


def _error(response: httpx.Response) -> str:
    alert = re.search(r'role="alert"[^>]*>([^<]*)<', response.text)
    return "" if alert is None else alert[1]


# ---- the list of studies


def test_the_list_shows_state_runs_and_verdict_of_each_study(sign_in: Callable[..., Browser]) -> None:
    text = sign_in("view").get("/").text
    assert "Gain shown" in (row := _row(text, "pairs")) and "done" in row and "val_accuracy" in row
    assert "No gain shown" in _row(text, "no-gain.v2") and "9 d" in _row(text, "no-gain.v2")
    row = _row(text, "searching")
    assert "running" in row and "3 agents" in row and "27/39" in row
    assert "4 failed" in _row(text, "losing")
    assert "of GPUs" in _row(text, "pairs") and "GPU-hours" not in text
    [on_cpu] = [name for name in _NAMES.findall(text) if name.startswith("a.very-long_name")]
    assert "of training" in (row := _row(text, on_cpu)) and "of GPUs" not in row
    assert _NAMES.findall(text)[0] == "searching", "studies at work come first"


def test_a_prefix_hides_all_other_studies(sign_in: Callable[..., Browser]) -> None:
    browser = sign_in("view", studies="no-")
    text = browser.get("/").text
    assert _NAMES.findall(text) == ["no-gain.v2"] and "pairs" not in text
    assert browser.get("/studies/pairs").status_code == 404
    assert "No study yet" in sign_in("view", studies="nothing").get("/").text


def test_a_query_filters_the_list_and_comes_back_escaped(sign_in: Callable[..., Browser]) -> None:
    browser = sign_in("view")
    assert _NAMES.findall(browser.get("/?q=GRACE+run").text) == ["searching"]
    assert "None of 5 studies matches" in browser.get("/?q=nothing-like-it").text
    text = browser.get("/", params={"q": '"><script>alert(1)</script>'}).text
    assert "<script>alert" not in text and "&lt;script&gt;" in text


# ---- the page of a study


def test_the_page_of_a_study_is_its_report(sign_in: Callable[..., Browser], site: RunningServer) -> None:
    browser = sign_in("view")
    page = browser.get("/studies/pairs")
    assert "Gain shown" in page.text and 'id="figures"' in page.text
    assert 'href="/"' in page.text and "Sign out" in page.text and "data-refresh" not in page.text
    assert len(page.text) < 2_000_000, "plotly.js is loaded from /assets"
    assert "data-refresh" in browser.get("/studies/searching").text
    headers = {"authorization": f"Bearer {site.token}"}
    assert "Sign out" not in browser.get("/studies/pairs", headers=headers).text


def test_a_report_is_rendered_again_only_after_a_change(
    sign_in: Callable[..., Browser], site: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    renders: list[str] = []
    render = page_html.render_report

    def count_render(result: object, **options: object) -> str:
        renders.append("")
        return render(result, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(page_html, "render_report", count_render)
    browser, study = sign_in("view"), site.store.load_study("losing")
    assert browser.get("/studies/losing").status_code == browser.get("/studies/losing").status_code == 200
    assert len(renders) == 1
    site.store.set_state(study.id, "paused")
    assert browser.get("/studies/losing").status_code == 200 and len(renders) == 2


def test_what_a_study_contains_runs_no_script(sign_in: Callable[..., Browser]) -> None:
    text = sign_in("view").get("/studies/losing").text
    assert "<script>alert" not in text and "<img src=x" not in text


def test_files_of_pages_need_no_token_and_are_kept_by_browsers(visitor: Browser) -> None:
    url = re.findall(r'href="(/assets/pages\.css\?v=\w+)"', visitor.get("/sign-in").text)[0]
    assert "immutable" in visitor.get(url).headers["cache-control"]
    assert visitor.get("/assets/pages.css").headers["cache-control"] == "no-cache"
    assert visitor.get("/assets/pages.css", headers={"accept-encoding": "identity"}).text.startswith("/*")
    assert visitor.get("/assets/nothing.js").status_code == 404


@pytest.mark.parametrize("path", ["/", "/studies/pairs", "/sign-in", "/studies/missing"])
def test_every_page_limits_what_a_browser_may_do(sign_in: Callable[..., Browser], path: str) -> None:
    response = sign_in("view").get(path)
    policy = response.headers.get("content-security-policy", html.unescape(response.text))
    assert "default-src 'none'" in policy and "unsafe-eval" not in policy
    assert response.headers["x-frame-options"] == "DENY"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"


# ---- sign in and out


def test_an_unknown_browser_is_asked_for_a_token_and_led_on(visitor: Browser) -> None:
    page = visitor.get("/studies/pairs?x=1")
    assert page.status_code == 401 and 'value="/studies/pairs?x=1"' in page.text and not _error(page)
    response = visitor.sign_in(visitor.site.token, "/studies/pairs?x=1")
    assert (response.status_code, response.headers["location"]) == (303, "/studies/pairs?x=1")
    assert "Gain shown" in visitor.get("/studies/pairs").text


def test_the_browser_holds_a_session_that_no_script_reads(visitor: Browser) -> None:
    name, value, attributes = _cookie(visitor.sign_in(visitor.site.token))
    assert name == f"tempopt-{visitor.site.url.rpartition(':')[2]}"
    assert value not in visitor.site.token and visitor.site.token not in value and len(value) == 43
    assert attributes.keys() == {"httponly", "path", "samesite", "expires"}
    assert (attributes["samesite"], attributes["path"]) == ("lax", "/")
    folder = Path(visitor.site.storage.removeprefix("sqlite:///")).parent
    assert value.encode() not in b"".join(file.read_bytes() for file in folder.glob("*.db*"))


@pytest.mark.parametrize("scheme", ["https", "http"])
@pytest.mark.parametrize("is_trusted", [True, False])
def test_over_tls_the_cookie_is_secure(tmp_path: Path, scheme: str, is_trusted: bool) -> None:
    with open_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        token, _ = create_token(store, name="ada", scopes=["view"])
        app = create_app(store, checkpoints=tmp_path.as_uri())
        proxied_app = ProxyHeadersMiddleware(app, "127.0.0.1" if is_trusted else "192.0.2.1")
        with TestClient(proxied_app, client=("127.0.0.1", 5), follow_redirects=False) as client:
            headers = {"origin": "http://testserver", "x-forwarded-proto": scheme}
            name, _, attributes = _cookie(client.post("/sign-in", data={"token": token}, headers=headers))
    is_secure = is_trusted and scheme == "https"
    assert ("secure" in attributes) is is_secure and name.startswith("__Host-") is is_secure


@pytest.mark.parametrize(
    ("token", "status", "message"),
    [
        ("", 401, "does not know"),
        ("x" * 5000, 401, "does not know"),
        ("tempopt_000000000000_" + "a" * 43, 401, "does not know"),
        ("revoked", 401, "was revoked"),
        ("expired", 401, "expired on"),
        ("agent", 403, "may agent; this asks for view"),
    ],
)
def test_an_invalid_token_is_refused_with_the_reason(
    visitor: Browser, token: str, status: int, message: str
) -> None:
    if token == "agent":
        token = visitor.site.new_token("agent")
    elif token in ("revoked", "expired"):
        life = timedelta(seconds=-1) if token == "expired" else None
        token, row = create_token(visitor.site.store, name="old", scopes=["view"], life=life)
        if life is None:
            visitor.site.store.revoke_token(row.id)
    response = visitor.sign_in(token, "/?q=a")
    assert response.status_code == status and message in _error(response)
    assert 'name="then" value="/?q=a"' in response.text and "set-cookie" not in response.headers


@pytest.mark.parametrize(
    "next_url",
    [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "/\t/evil.example",
        "javascript:alert(1)",
        "",
    ],
)
def test_signing_in_leads_to_no_other_site(visitor: Browser, next_url: str) -> None:
    assert visitor.sign_in(visitor.site.token, next_url).headers["location"] == "/"
    assert 'name="then" value="/"' in visitor.get("/sign-in", params={"then": next_url}).text


def test_another_site_cannot_send_the_form(visitor: Browser) -> None:
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {}):
        response = visitor.post("/sign-in", data={"token": visitor.site.token}, headers=headers)
        assert response.status_code == 403 and "set-cookie" not in response.headers


def test_a_session_reads_and_changes_nothing(sign_in: Callable[..., Browser], site: RunningServer) -> None:
    browser = sign_in("admin")
    assert browser.get("/api/me", headers={"accept": "*/*"}).status_code == 200
    for headers in ({}, browser.origin, {"sec-fetch-site": "same-origin"}):
        response = browser.post("/api/studies/searching/pause", headers={"accept": "*/*", **headers})
        assert response.json()["error"]["code"] == "token_missing"
    assert browser.delete("/api/studies/searching", headers={"accept": "*/*"}).status_code == 401
    assert site.store.load_study("searching").state == "running"


def test_a_token_beside_a_session_counts_alone(sign_in: Callable[..., Browser], site: RunningServer) -> None:
    browser = sign_in("admin")
    headers = {"accept": "*/*", "authorization": f"Bearer {site.new_token('view')}"}
    assert browser.get("/api/me", headers=headers).json()["scopes"] == ["view"]
    headers["authorization"] = "Bearer nonsense"
    assert browser.get("/api/me", headers=headers).json()["error"]["code"] == "token_unknown"


def test_signing_out_ends_the_session_on_every_server(
    sign_in: Callable[..., Browser], site: RunningServer
) -> None:
    browser = sign_in("view")
    cookies = dict(browser.cookies)
    assert browser.post("/sign-out").headers["location"] == "/sign-in" and not browser.cookies
    with httpx.Client(base_url=site.url, cookies=cookies, timeout=60) as thief:
        assert thief.get("/api/me").json()["error"]["code"] == "session_ended"
    assert sessions.token_of(site.store, next(iter(cookies.values()))) is None
    rows = site.store.audit_rows(limit=3)[1:]
    assert [(row.action, row.status) for row in rows] == [("POST /sign-out", 303), ("POST /sign-in", 303)]
    assert next(iter(cookies.values())) not in repr(rows)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        yield store


def test_a_session_lives_no_longer_than_its_token(store: Store) -> None:
    now_utc = datetime.now(UTC)
    _, expires = sessions.begin(store, "a", until=None)
    assert timedelta(0) <= expires - now_utc - sessions.LIFE < timedelta(minutes=1)
    soon = now_utc + timedelta(hours=1)
    secret, expires = sessions.begin(store, "a", until=soon)
    assert expires == soon and sessions.token_of(store, secret) == "a"
    expired_secret, _ = sessions.begin(store, "a", until=now_utc - timedelta(seconds=1))
    assert sessions.token_of(store, expired_secret) is None


@pytest.mark.parametrize("host", ["[", "a:99999999", "a:b", "::1", "a:²", "", "x" * 5000])
def test_an_odd_host_changes_nothing(visitor: Browser, host: str) -> None:
    page = visitor.get("/studies/pairs?x=%2F", headers={"host": host.encode()})
    assert page.status_code in (400, 401)
    if page.status_code == 401:
        assert 'name="then" value="/studies/pairs?x=%2F"' in page.text


@pytest.mark.parametrize("body", [b"\xff\xfe", b"&".join(b"a=1" for _ in range(200)), b"token=%00", b"{}"])
def test_an_odd_form_is_refused_as_a_page(visitor: Browser, body: bytes) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded"}
    response = visitor.post("/sign-in", content=body, headers={**visitor.origin, **kind})
    assert response.status_code in (400, 401, 429) and "<h1" in response.text
