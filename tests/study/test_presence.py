"""An agent that is gone is known to be, on its own machine only."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tempopt.study import presence
from tempopt.study.presence import agent_name, is_dead, machine, shown

_NAME = "from tempopt.study.presence import agent_name; print(agent_name(), flush=True)"


def test_this_process_lives_under_one_name() -> None:
    assert agent_name() == agent_name()
    assert not is_dead(agent_name())


def test_a_process_is_alive_until_it_has_ended() -> None:
    command = [sys.executable, "-c", f"{_NAME}; input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert not is_dead(name)
        process.kill()
        process.wait()
        assert is_dead(name)


def test_a_pid_that_was_given_out_again_is_another_agent() -> None:
    host, pid, where, start = agent_name().split(":")
    assert is_dead(f"{host}:{pid}:{where}:{int(start) - 1}")


def test_nothing_is_known_of_agents_on_other_machines() -> None:
    host, _, where, start = agent_name().split(":")
    elsewhere = "0" * 8 if where != "0" * 8 else "1" * 8
    assert not is_dead(f"{host}:999999999:{elsewhere}:{start}")
    assert not is_dead("an agent of an older version")


def test_machines_are_told_apart_by_more_than_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine()
    presence.machine.cache_clear()
    monkeypatch.setattr(presence.socket, "gethostname", lambda: "another")
    assert machine() != before
    presence.machine.cache_clear()


def test_people_see_host_and_pid() -> None:
    assert shown("node7:123:0011aabb:456") == "node7:123"
