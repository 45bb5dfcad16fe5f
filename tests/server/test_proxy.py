"""People that a proxy has signed in, and what counts of what a proxy tells."""

from __future__ import annotations

import re
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from tempopt.errors import UsageError
from tempopt.server.app import create_app
from tempopt.server.auth import SCOPES, Access, access_of
from tempopt.server.tokens import made
from tempopt.store.store import Store
from tests.server.conftest import Served
from tests.server.guarded import code_of, guard_of, request_of

PROXY = Access(
    proxies=(ip_network("10.0.0.0/8"),),
    people={"group:ml": "submit", "user:root@example.com": "admin", "*": "view"},
)


def test_people_that_a_trusted_proxy_has_signed_in_may_do_what_is_configured(store: Store) -> None:
    guard, _ = guard_of(store, PROXY)
    ada = guard.principal(request_of("10.1.2.3", x_forwarded_email="ada@example.com"), None)
    assert (ada.name, ada.scopes) == ("ada@example.com", {"view"})
    groups = request_of("10.1.2.3", x_forwarded_email="bob@example.com", x_forwarded_groups="x, ml")
    assert guard.principal(groups, None).scopes == {"view", "submit"}
    root = guard.principal(request_of("10.1.2.3", x_forwarded_email="root@example.com"), None)
    assert root.scopes == set(SCOPES)
    odd = [
        guard.principal(request_of("10.1.2.3", x_forwarded_user=name), None).name
        for name in ("a b/../\x01<c>", "a_b/../\x01<c>")
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9@._+%-]+", name) for name in odd) and odd[0] != odd[1]


def test_nobody_gets_the_rights_of_another_by_the_name_that_they_choose(store: Store) -> None:
    guard, _ = guard_of(store, PROXY)
    for user in ("root@example.com", "group:ml", "*"):
        told = {"x_forwarded_email": "eve@example.com", "x_forwarded_user": user}
        assert guard.principal(request_of("10.1.2.3", **told), None).scopes == {"view"}
    # an agent of a token is no agent of a person of that name
    assert guard.principal(request_of("10.1.2.3", x_forwarded_user="cluster"), None).name == "cluster@proxy"
    long = request_of("10.1.2.3", x_forwarded_email="a" * 100 + "@example.com")
    assert code_of(guard, long, None) == "unauthenticated"


def test_a_user_whose_name_looks_like_an_address_is_nobody_who_has_it(store: Store) -> None:
    guard, _ = guard_of(store, PROXY)
    user = guard.principal(request_of("10.1.2.3", x_forwarded_user="ada@example.com"), None)
    address = guard.principal(request_of("10.1.2.3", x_forwarded_email="ada@example.com"), None)
    assert user.name != address.name
    same = guard.principal(request_of("10.1.2.3", x_forwarded_email="Ada@Example.com"), None)
    assert same.name == address.name
    assert guard.principal(request_of("10.1.2.3", x_forwarded_email="ROOT@example.com"), None).scopes == set(
        SCOPES
    )
    assert code_of(guard, request_of("10.1.2.3", x_forwarded_email="ada@proxy"), None) == "unauthenticated"


def test_of_lines_that_a_proxy_adds_the_last_one_counts(store: Store) -> None:
    guard, _ = guard_of(store, PROXY)
    for told in (["9.9.9.9", "5.5.5.5"], ["9.9.9.9, 5.5.5.5"], ["8.8.8.8", "9.9.9.9, 5.5.5.5"]):
        request = request_of("10.1.2.3")
        request.scope["headers"] += [(b"x-forwarded-for", each.encode()) for each in told]
        assert guard.address(request) == "5.5.5.5"


def test_only_a_trusted_proxy_says_under_which_name_a_page_is_reached(served: Served) -> None:
    told = {"origin": "http://evil.example", "x-forwarded-host": "evil.example"}
    answer = httpx.post(f"{served.url}/sign-in", data={"token": served.token}, headers=told, timeout=60)
    assert answer.status_code == 403 and not answer.cookies


@pytest.mark.parametrize("name", ["email", "user", "groups"])
def test_headers_that_the_proxy_did_not_replace_are_not_believed(store: Store, name: str) -> None:
    guard, _ = guard_of(store, PROXY)
    request = request_of("10.1.2.3", x_forwarded_email="ada@example.com")
    request.scope["headers"] += [(f"x-forwarded-{name}".encode(), b"ml")] * 2
    assert code_of(guard, request, None) == "unauthenticated"


@pytest.mark.parametrize("peer", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_people_of_a_proxy_over_http_change_what_their_own_pages_ask_for(
    store: Store, tmp_path: Path, peer: str
) -> None:
    app = create_app(store, checkpoints=tmp_path.as_uri(), access=PROXY)
    ada = {"x-forwarded-email": "ada@example.com", "x-forwarded-groups": "ml"}
    with TestClient(app, base_url="http://here", client=(peer, 5000), headers=ada) as client:
        assert client.get("/api/me").json()["scopes"] == ["view", "submit"]
        assert client.get("/api/me", headers={"sec-fetch-site": "cross-site"}).status_code == 200
        for told, status in (
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"sec-fetch-site": "same-site", "origin": "http://here"}, 403),
            ({"origin": "http://elsewhere"}, 403),
            ({"origin": "null"}, 403),
            ({"sec-fetch-site": "same-origin"}, 404),
            ({"origin": "http://here"}, 404),
            ({"origin": "https://proxy", "x-forwarded-host": "proxy"}, 404),
            ({}, 404),
        ):
            assert client.post("/api/studies/none/pause", headers=told).status_code == status, told
        token, _ = made(store, name="page", scopes=["submit"])
        shown = {"authorization": f"Bearer {token}", "origin": "http://elsewhere"}
        assert client.post("/api/studies/none/pause", headers=shown).status_code == 404
    rows = store.audited()
    assert {(each.token, each.study) for each in rows[1:]} == {("person", "none")}
    assert {each.name for each in rows} == {"ada@example.com", "page"}


@pytest.mark.parametrize("peer", ["192.0.2.7", "::1", "11.0.0.1", "not an address"])
def test_headers_of_a_proxy_count_from_nobody_else(store: Store, peer: str) -> None:
    guard, _ = guard_of(store, PROXY)
    told = {"x_forwarded_email": "root@example.com", "x_forwarded_for": "10.1.2.3"}
    assert code_of(guard, request_of(peer, **told), None) == "token_missing"
    assert guard.address(request_of(peer, **told)) == peer


def test_without_a_configured_proxy_nobody_is_believed(served: Served) -> None:
    headers = {"x-forwarded-email": "root@example.com", "x-forwarded-for": "127.0.0.1"}
    assert httpx.get(f"{served.url}/api/me", headers=headers, timeout=60).status_code == 401


@pytest.mark.parametrize(
    ("proxies", "people", "said"),
    [
        (["10.0.0.0/33"], [], "--trust-proxy"),
        ([], ["*=view"], "--trust-proxy"),
        (["10.0.0.0/8"], ["everybody=view"], "user:NAME=SCOPE"),
        (["10.0.0.0/8"], ["*=root"], "the scopes are"),
    ],
)
def test_settings_of_a_proxy_that_make_no_sense_are_refused(
    proxies: list[str], people: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        access_of(proxies, people)
