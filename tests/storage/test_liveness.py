"""An agent that is gone is known to be, on its own machine only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tempopt.storage import liveness
from tempopt.storage.liveness import agent_name, is_dead, machine_id, short_agent_name

_NAME = "from tempopt.storage.liveness import agent_name; print(agent_name(), flush=True)"


def test_each_agent_of_this_process_has_a_name_of_its_own_and_lives() -> None:
    names = [agent_name() for _ in range(3)]
    assert len(set(names)) == 3
    assert not any(is_dead(name) for name in names)
    assert {len(name.split(":")) for name in names} == {4}
    assert len({short_agent_name(name) for name in names}) == 1


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
    host, pid, machine_id, start = agent_name().split(":")
    boot_seconds, _, count = start.partition(".")
    assert is_dead(f"{host}:{pid}:{machine_id}:{int(boot_seconds) - 1}.{count}")


@pytest.mark.parametrize("error", [None, PermissionError])
def test_a_process_that_is_hidden_is_not_taken_for_dead(
    error: type[OSError] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = agent_name()

    def kill(pid: int, signal: int) -> None:
        assert (pid, signal) == (os.getpid(), 0)
        if error is not None:
            raise error

    # a /proc with hidepid shows no folder for it
    monkeypatch.setattr(liveness, "_PROC", tmp_path)
    monkeypatch.setattr(os, "kill", kill)
    assert not is_dead(name)


def test_a_process_that_neither_proc_nor_the_kernel_knows_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _, machine_id, start = agent_name().split(":")
    monkeypatch.setattr(liveness, "_PROC", tmp_path)
    for pid in (999999999, 10**30):
        assert is_dead(f"{host}:{pid}:{machine_id}:{start}")


def test_nothing_is_known_of_agents_on_other_machines() -> None:
    host, _, machine_id, start = agent_name().split(":")
    other_machine = "0" * 8 if machine_id != "0" * 8 else "1" * 8
    assert not is_dead(f"{host}:999999999:{other_machine}:{start}")
    assert not is_dead("an agent of an older version")
    assert not is_dead(f"{host}:not a number:{machine_id}:{start}")


def test_machines_are_told_apart_by_more_than_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_before = machine_id()
    liveness.machine_id.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert machine_id() != machine_before
    liveness.machine_id.cache_clear()
