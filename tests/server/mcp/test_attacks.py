"""Requests that no client should send: each is answered, in few words, and shows nothing of other files."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tempopt.server.mcp.tools import TOOLS
from tests.spoiled import spoil_document
from tests.toy_study import SMALL, toy_spec, work_in

PROGRAM = {
    "study": {"name": "nano", "metric": "loss", "direction": "minimize"},
    "program": {"command": "python train.py {seed} {lr}", "metric": "loss"},
    "search": {"lr": {"low": 0.001, "high": 0.1, "baseline": 0.01}},
}
SETS = ["{}", "{temperature_init: 2}"]


class RawClient:
    """Writes lines to a process ``tempopt mcp``, and reads its answers."""

    def __init__(self, *words: str, errors: IO[bytes]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tempopt", "mcp", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        self._number = 0
        info = {"name": "test", "version": "1"}
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=info)
        self.send(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self.send(json.dumps(request).encode())
        answer = self.receive()
        assert answer["id"] in (self._number, None)
        return answer

    def error(self, tool: str, arguments: Any) -> str:
        """Return the error with which a call is refused; empty: it is answered."""
        answer = self.ask("tools/call", name=tool, arguments=arguments)
        if "error" in answer:
            return str(answer["error"]["message"])
        result = answer["result"]
        return str(result["content"][0]["text"]) if result.get("isError") else ""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    """A client whose budget allows one run, so that nothing is trained."""
    folder = tmp_path_factory.mktemp("attacks") / "folder"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        with Path("../errors").open("wb") as errors:
            raw_client = RawClient("--runs", "1", errors=errors)
            yield raw_client
            raw_client.process.communicate(timeout=60)
        assert raw_client.process.returncode == 0
        assert "Traceback" not in Path("../errors").read_text()


def test_annotations_say_what_may_run_code(client: RawClient) -> None:
    hints = {tool["name"]: tool["annotations"] for tool in client.ask("tools/list")["result"]["tools"]}
    assert hints.keys() == TOOLS.keys()
    assert {name for name, hint in hints.items() if hint["openWorldHint"]} == {"plan", "search", "compare"}
    assert {name for name, hint in hints.items() if hint["readOnlyHint"]} == {
        "show",
        "verdict",
        "export",
        "list",
    }
    assert all(hint["destructiveHint"] != hint["readOnlyHint"] for hint in hints.values())


def test_nothing_is_imported_for_a_study_that_cannot_be_begun(client: RawClient) -> None:
    Path("hostile.py").write_text("open('imported', 'w')\n")
    spec = toy_spec(**SMALL) | {"model": {"class_path": "hostile.Model"}}
    answer = client.ask("tools/call", name="plan", arguments={"spec": spec})["result"]["structuredContent"]
    assert not answer["fits"] and "1 of 1 runs are left" in answer["refusal"]
    assert "would exceed" in client.error("search", {"spec": spec})
    assert "would exceed" in client.error("compare", {"spec": spec, "sets": SETS})
    assert not Path("imported").exists()


@pytest.mark.parametrize(
    "content", ["root:$6$secret:19000:0\n", "password: secret\n", "a: [secret\n", "- secret"]
)
def test_no_file_is_read_out(client: RawClient, content: str) -> None:
    outside = Path("../outside.yaml")
    for path in (outside, Path("inside.yaml"), Path("inside.txt")):
        path.write_text(content)
    Path("link.yaml").unlink(missing_ok=True)
    Path("link.yaml").symlink_to(outside)
    paths = [str(outside), str(outside.resolve()), "link.yaml", "inside.yaml", "inside.txt", "/etc/passwd"]
    for path in (*paths, "~/.bashrc", "/dev/stdin", "../no.yaml", "no.yaml", "a\0b", "x" * 5000):
        for tool, more in (("plan", {}), ("search", {"set": ["study.name=x"]}), ("compare", {"sets": SETS})):
            error = client.error(tool, {"spec": path, **more})
            assert error and "secret" not in error and "/bin/" not in error, path
        for more in ({"sets": [path, "{}"]}, {"sets": [f"a={path}", "{}"]}):
            error = client.error("compare", {"spec": toy_spec(), **more})
            assert error.startswith("What compare was given") and "secret" not in error


@pytest.mark.parametrize("levels", [100, 300, 10_000])
@pytest.mark.parametrize("request_id", [7, "seven"])
def test_a_deeply_nested_request_is_answered(client: RawClient, levels: int, request_id: int | str) -> None:
    value = "[" * levels + "]" * levels
    arguments = f'{{"name": "plan", "arguments": {{"id": 3, "spec": {{"study": {value}}}}}}}'
    call = f'"jsonrpc": "2.0", "method": "tools/call", "params": {arguments}, "id": {json.dumps(request_id)}'
    client.send(f"{{{call}}}".encode())
    answer = client.receive()
    assert answer["id"] == request_id
    assert "error" in answer or answer["result"]["isError"]
    assert client.error("show", {"study": "none"})


@pytest.mark.parametrize(
    "line", [b"hello", b"{}", b"[]", b'{"jsonrpc": "2.0", "id": 1}', b"\xff\xfe", b'"' * 9]
)
def test_a_line_that_is_no_request_is_answered(client: RawClient, line: bytes) -> None:
    client.send(line)
    assert client.receive()["error"]["code"] == -32700
    assert client.error("show", {"study": "none"})


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 10))])
def test_a_call_with_any_arguments_is_answered_in_few_words(client: RawClient, part: int) -> None:
    chance = random.Random(part)
    for _ in range(50):
        spec = chance.choice([toy_spec(**SMALL), json.loads(json.dumps(PROGRAM)), "clip_digits"])
        arguments = {
            "plan": {"spec": spec, "set": ["study.trials=3"]},
            "compare": {"spec": spec, "sets": SETS, "pairs": 3, "name": "other", "vary": {}, "max_runs": 20},
            "export": {"study": "toy", "format": "yaml", "winner": True},
            "list": {},
        }
        name = chance.choice(list(TOOLS))
        default = arguments["plan"] if name == "search" else {"study": "toy"}
        spoiled = spoil_document(arguments.get(name, default), chance)
        assert len(client.error(name, spoiled)) <= 2000, (name, spoiled)
