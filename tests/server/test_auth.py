"""Who may do what: every route asks for a scope, and no client gets further than its token."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from tempopt.errors import UsageError, mask_secrets
from tempopt.server.app import create_app
from tempopt.server.auth_throttle import AuthThrottle
from tempopt.server.authenticator import FRESH_SECONDS, SCOPES
from tempopt.server.errors import ApiError
from tempopt.server.tokens import create_token, digest, first_token
from tempopt.storage.store import Store
from tests.server.guarded import code_of, guard_of, request_of
from tests.server.http_server import RunningServer
from tests.toy_study import toy_spec

OPEN = {"/healthz", "/readyz", "/openapi.json"}
OPEN |= {"/sign-in", "/assets/{name}"}
IMPLIED = {"view": {"view"}, "submit": {"view", "submit"}, "agent": {"agent"}, "admin": set(SCOPES)}


def _scopes(dependant: Dependant) -> set[str]:
    """Return the scopes that a route, or what it depends on, asks for."""
    scopes = set(getattr(dependant.call, "scopes", ()))
    return scopes.union(*(_scopes(child) for child in dependant.dependencies))


def _routes(app: FastAPI) -> Iterator[tuple[str, str, set[str]]]:
    """Yield method, path and scopes of every route."""

    def walk_routes(routes: Any) -> Iterator[APIRoute]:
        for route in routes:
            if isinstance(route, APIRoute):
                yield route
            inner = getattr(route, "original_router", None) or getattr(route, "router", None)
            if inner is not None:
                yield from walk_routes(inner.routes)

    for route in walk_routes(app.routes):
        if route.path in OPEN:
            continue
        for method in route.methods:
            yield method, route.path, _scopes(route.dependant)


def _documented_requests() -> dict[str, set[tuple[str, str]]]:
    """Return method and path of the requests of each scope in the table of docs/trust.md."""
    page = (Path(__file__).parents[2] / "docs" / "trust.md").read_text()
    table = page.partition("\n## Tokens\n")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    return {
        row[0].strip("| `"): {(method, path) for method, path in re.findall(r"`([A-Z]+) (/[^`]*)`", row[1])}
        for row in rows
    }


def test_the_page_on_security_has_the_requests_of_each_scope(store: Store, tmp_path: Path) -> None:
    documented = _documented_requests()
    assert documented.keys() == {"any", *SCOPES}
    routes = list(_routes(create_app(store, checkpoints=tmp_path.as_uri())))
    for method, path, scopes in routes:
        scope = "any" if scopes == set(SCOPES) else " ".join(scopes)
        documenting = {
            name
            for name, requests in documented.items()
            for other_method, prefix in requests
            if method == other_method and (path == prefix or path.startswith(f"{prefix}/"))
        }
        assert documenting == {scope}, f"{method} {path}"
    for name, requests in documented.items():
        for method, prefix in requests:
            assert any(
                method == other_method and path.startswith(prefix) for other_method, path, _ in routes
            ), f"{name}: {method} {prefix} is no request"


def test_every_route_asks_for_a_scope_and_refuses_all_others(running_server: RunningServer) -> None:
    routes = list(_routes(running_server.app))
    documented_routes = {
        (method.upper(), path)
        for path, methods in running_server.app.openapi()["paths"].items()
        for method in methods
    }
    assert documented_routes <= {(method, path) for method, path, _ in routes} and len(documented_routes) > 20
    tokens = {scope: running_server.new_token(scope) for scope in SCOPES}
    with httpx.Client(base_url=running_server.url, timeout=60) as client:
        for method, path, scopes in routes:
            assert scopes, f"{method} {path} asks for no scope"
            url = re.sub(r"{[^}]*}", "x", path)
            for scope, token in tokens.items():
                headers = {"authorization": f"Bearer {token}", "tempopt-protocol": "1"}
                answer = client.request(method, url, headers=headers)
                is_refused = answer.status_code == 403 and answer.json()["error"]["code"] == "forbidden"
                assert is_refused is scopes.isdisjoint(IMPLIED[scope]), (method, path, scope, answer.text)
                assert answer.status_code != 401
            assert client.request(method, url).status_code in (401, 429), (method, path)


@pytest.mark.parametrize(
    ("token", "code"),
    [
        (None, "token_missing"),
        ("Basic YWRhOmFkYQ==", "token_missing"),
        ("x" * 5000, "token_unknown"),
        ("tempopt_000000000000_" + "a" * 43, "token_unknown"),
        ("'; DROP TABLE tempopt_token; --", "token_unknown"),
        ("x" * 20_000, "token_unknown"),
        ("tempopt_000000000000_\xd9\xa1", "token_unknown"),
    ],
)
def test_an_unknown_token_is_refused_with_a_stable_code(
    running_server: RunningServer, token: str | None, code: str
) -> None:
    authorization = token if token and token.startswith("Basic ") else f"Bearer {token}"
    headers = {} if token is None else {"authorization": authorization.encode("latin-1")}
    answer = httpx.get(f"{running_server.url}/api/me", headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_token_with_another_ones_id_is_not_accepted(running_server: RunningServer) -> None:
    other_token = running_server.new_token("view")
    forged_token = "_".join([*running_server.token.split("_", 2)[:2], other_token.split("_", 2)[2]])
    answer = httpx.get(
        f"{running_server.url}/api/me", headers={"authorization": f"Bearer {forged_token}"}, timeout=60
    )
    assert answer.json()["error"]["code"] == "token_unknown"


def test_a_revoked_token_is_refused_within_the_time_that_is_promised(store: Store) -> None:
    guard, clock = guard_of(store)
    token, row = create_token(store, name="ada", scopes=["view"])
    assert guard.principal(request_of(), token).name == "ada"
    assert store.revoke_token(row.id) and not store.revoke_token(row.id)
    clock.now += FRESH_SECONDS + 0.1
    assert code_of(guard, request_of(), token) == "token_revoked"
    # another server, or one that was started again, knows at once
    assert code_of(guard_of(store)[0], request_of(), token) == "token_revoked"


def test_a_token_expires(store: Store) -> None:
    guard, _ = guard_of(store)
    token, _ = create_token(store, name="ada", scopes=["view"], life=timedelta(seconds=-1))
    assert code_of(guard, request_of(), token) == "token_expired"
    late, _ = create_token(store, name="ada", scopes=["view"], life=timedelta(days=1))
    assert guard.principal(request_of(), late).scopes == {"view"}


def test_of_a_token_the_store_holds_its_digest_and_when_it_was_used(store: Store, tmp_path: Path) -> None:
    guard, _ = guard_of(store)
    token, row = create_token(store, name="ada", scopes=["submit", "agent"], studies="vision-")
    assert len(token.split("_", 2)[2]) >= 43 and row.digest == digest(token)
    assert store.token(row.id) == row and row.used is None
    principal = guard.principal(request_of(), token)
    assert principal.scopes == {"view", "submit", "agent"} and principal.studies == "vision-"
    token_row = store.token(row.id)
    assert token_row is not None and token_row.used is not None
    assert datetime.now(UTC) - token_row.used < timedelta(minutes=1)
    secret = token.split("_", 2)[2].encode()
    assert all(secret not in path.read_bytes() for path in tmp_path.iterdir())
    assert secret.decode() not in mask_secrets(f"told: {token}, Bearer%20{token}")
    assert row.id in mask_secrets(token)


def test_a_token_costs_the_store_no_request_while_it_is_fresh(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("token", "use_token"):
        ask = getattr(store, name)
        monkeypatch.setattr(
            store, name, lambda *args, name=name, ask=ask: (calls.append(name), ask(*args))[1]
        )
    guard, clock = guard_of(store)
    token, _ = create_token(store, name="cluster", scopes=["agent"])
    for _ in range(64):
        guard.principal(request_of(), token)
    assert calls == ["token", "use_token"]
    clock.now += FRESH_SECONDS + 0.1
    for _ in range(64):
        guard.principal(request_of(), token)
    assert calls == ["token", "use_token", "token"]


def test_a_token_that_is_refused_has_not_been_used(store: Store) -> None:
    token, row = create_token(store, name="ada", scopes=["view"], life=timedelta(seconds=-1))
    assert code_of(guard_of(store)[0], request_of(), token) == "token_expired"
    assert store.token(row.id) == row


def test_an_authenticated_client_is_refused_once_its_token_is_revoked(store: Store) -> None:
    guard, clock = guard_of(store)
    token, row = create_token(store, name="ada", scopes=["view"])
    principal = guard.principal(request_of(), token)
    assert guard.revalidate(principal)
    store.revoke_token(row.id)
    clock.now += FRESH_SECONDS + 0.1
    assert not guard.revalidate(principal)


def test_who_fails_often_waits_longer_each_time_and_a_right_token_is_served_all_the_same(
    store: Store,
) -> None:
    guard, _ = guard_of(store)
    token, _ = create_token(store, name="ada", scopes=["view"])
    for _ in range(AuthThrottle.FREE):
        assert code_of(guard, request_of(), "wrong") == "token_unknown"
    assert code_of(guard, request_of(), "wrong") == "token_unknown"
    waits = []
    for _ in range(12):
        assert code_of(guard, request_of(), "wrong") == "rate_limited"
        waits.append(guard.failures.wait("192.0.2.7"))
    assert waits == sorted(waits) and waits[-1] == AuthThrottle.LONGEST
    assert code_of(guard, request_of("192.0.2.8"), "wrong") == "token_unknown"
    assert guard.principal(request_of(), token).name == "ada"
    assert code_of(guard, request_of(), "wrong") == "token_unknown"


def test_a_throttled_client_receives_retry_after_and_may_try_again_then(store: Store) -> None:
    guard, clock = guard_of(store)
    for _ in range(AuthThrottle.FREE + 1):
        code_of(guard, request_of(), "wrong")
    with pytest.raises(ApiError) as error:
        guard.principal(request_of(), "wrong")
    assert error.value.headers == {"retry-after": "4"}
    clock.now += 4
    assert code_of(guard, request_of(), "wrong") == "token_unknown"


def test_a_network_of_one_holder_is_one_address() -> None:
    failures = AuthThrottle(lambda: 0.0)
    for number in range(20):
        failures.count_failure(f"2001:db8::{number:x}")
    assert failures.wait("2001:db8::ffff:1") > 0
    assert failures.wait("2001:db8:0:1::1") == 0
    assert failures.wait("::ffff:192.0.2.7") == failures.wait("not an address") == 0


def test_failures_of_many_addresses_take_bounded_memory_and_few_lines() -> None:
    clock = SimpleNamespace(now=0.0)
    failures = AuthThrottle(lambda: clock.now)
    lines = [failures.count_failure(f"2001:db8:0:{number:x}::1") for number in range(10_000)]
    assert [wait for wait in lines if wait is not None] == [0] * 60
    assert len(failures._failures_by_client) <= 4096
    clock.now += 61
    assert failures.count_failure("192.0.2.8") == 10_000 - 60


def test_failures_of_a_throttled_address_are_suppressed_in_the_log() -> None:
    failures = AuthThrottle(lambda: 0.0)
    lines = [failures.count_failure("192.0.2.7") for _ in range(1000)]
    assert sum(wait is not None for wait in lines) == AuthThrottle.FREE + 1
    assert failures.count_failure("192.0.2.8") == 1000 - AuthThrottle.FREE - 1


def test_what_is_changed_and_who_is_refused_is_audited_without_secrets(running_server: RunningServer) -> None:
    with running_server.client() as client:
        client.get("/api/studies", headers={"authorization": "Bearer wrong"})
        token_reply = client.post("/api/tokens", json={"name": "cluster", "scopes": ["agent"]}).json()
        client.get("/api/studies")
        client.delete(f"/api/tokens/{token_reply['id']}")
        client.headers["authorization"] = f"Bearer {running_server.new_token('view')}"
        assert client.post("/api/tokens", json={"name": "b", "scopes": ["admin"]}).status_code == 403
        client.headers["authorization"] = f"Bearer {running_server.token}"
        lines = client.get("/api/audit").json()
        params = {"before": lines[0]["number"], "limit": 1}
        assert client.get("/api/audit", params=params).json() == lines[1:2]
    audit_rows = [
        tuple(line[key] for key in ("name", "action", "status", "detail")) for line in reversed(lines)
    ]
    assert audit_rows == [
        ("", "GET /api/studies", 401, ""),
        ("admin", "POST /api/tokens", 201, f"token {token_reply['id']} cluster: agent on all studies"),
        ("admin", f"DELETE /api/tokens/{token_reply['id']}", 200, ""),
        ("other", "POST /api/tokens", 403, ""),
    ]
    assert token_reply["token"] not in str(lines) and {line["address"] for line in lines} == {"127.0.0.1"}


def test_the_audit_log_says_which_study_it_was(running_server: RunningServer) -> None:
    agent = {"agent": "here:1", "session": "5f3a9c0e7b21"}
    with running_server.client() as client:
        client.post("/api/studies", json={"spec": toy_spec()})
        reply = client.post("/api/agents/join", json={"study": "toy", **agent}).json()
        body = {"study": "toy", "study_id": reply["study"]["id"], **agent}
        client.post("/api/agents/sync", json=body)
        client.post("/api/agents/leave", json=body)
        ids = {"study": body["study_id"]}
        client.post("/api/studies/toy/pause", params=ids)
        client.post("/api/studies/other/pause", params=ids)
        client.post(f"/api/studies/{running_server.token}/pause", params=ids)
        client.delete("/api/studies/toy", params=ids)
        lines = client.get("/api/audit", params={"study": "toy"}).json()
        whole_log = client.get("/api/audit").text
    assert "_***" in whole_log and running_server.token not in whole_log
    audit_rows = [
        tuple(line[key] for key in ("action", "study", "detail", "status")) for line in reversed(lines)
    ]
    assert audit_rows == [
        ("POST /api/studies", "toy", "", 201),
        ("POST /api/agents/join", "toy", "here:1", 200),
        ("POST /api/agents/leave", "toy", "here:1", 200),
        ("POST /api/studies/toy/pause", "toy", "", 200),
        ("DELETE /api/studies/toy", "toy", "", 200),
    ]


def test_what_fails_unforeseen_is_audited_all_the_same(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(store, checkpoints=tmp_path.as_uri())
    token, _ = create_token(store, name="admin", scopes=["admin"])
    monkeypatch.setattr(store, "revoke_token", lambda id: 1 // 0)
    headers = {"authorization": f"Bearer {token}"}
    with TestClient(app, raise_server_exceptions=False, headers=headers) as client:
        assert client.delete("/api/tokens/x").status_code == 500
    [row] = store.audit_rows()
    assert (row.action, row.status, row.name) == ("DELETE /api/tokens/x", 500, "admin")


def test_who_may_do_everything_to_some_studies_makes_no_tokens_for_others(
    running_server: RunningServer,
) -> None:
    token = running_server.new_token("admin", studies="vision-")
    with running_server.client(token) as client:
        body = {"name": "b", "scopes": ["admin"]}
        assert client.post("/api/tokens", json=body).status_code == 403
        assert client.get("/api/tokens").status_code == client.get("/api/audit").status_code == 403


def test_tokens_over_http_never_tell_what_verifies_them(running_server: RunningServer) -> None:
    with running_server.client() as client:
        token_reply = client.post(
            "/api/tokens", json={"name": "c", "scopes": ["view"], "studies": "a", "expires": "30d"}
        ).json()
        (admin, token_entry) = client.get("/api/tokens").json()
    row = running_server.store.token(token_reply["id"])
    assert row is not None and row.created_by == "admin" and row.studies == "a"
    assert row.expires is not None and row.expires - row.created == timedelta(days=30)
    assert token_entry == {name: value for name, value in token_reply.items() if name != "token"}
    assert admin["name"] == "admin" and row.digest not in str((admin, token_entry))


@pytest.mark.parametrize(
    ("name", "scopes"), [("", ["view"]), ("a b", ["view"]), ("-a", ["view"]), ("a", []), ("a", ["root"])]
)
def test_a_token_needs_a_name_and_scopes(store: Store, name: str, scopes: list[str]) -> None:
    with pytest.raises(UsageError):
        create_token(store, name=name, scopes=scopes)
    assert store.tokens() == []


def test_the_first_token_is_made_once(store: Store) -> None:
    token = first_token(store)
    assert token is not None and first_token(store) is None
    assert guard_of(store)[0].principal(request_of(), token).scopes == set(SCOPES)
