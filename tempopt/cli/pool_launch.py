"""``tempopt agent --pool --launcher``: keep as many agents of the pool started as there is work for."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
from pathlib import Path

from tempopt.agent.signals import interruptible
from tempopt.cli import INTERRUPTED
from tempopt.cli.jobs import launch_options
from tempopt.cli.pool_agent import Place, kind, place, store_url, told
from tempopt.errors import UsageError
from tempopt.files import absolute
from tempopt.launch.find import make_launcher
from tempopt.launch.launcher import Launcher, PoolWork, Task
from tempopt.launch.launching import PROGRAM, environment, refuse_file
from tempopt.launch.scaler import Scaler
from tempopt.records.liveness import user
from tempopt.spec.sizes import in_bytes
from tempopt.store import checkpoints
from tempopt.workers.placement import Need

_IDLE_SECONDS = 60.0
# A study's own grace is not known before an agent serves it.
_GRACE_SECONDS = 60.0


def launched(arguments: argparse.Namespace) -> int:
    """Keep agents started as there is need of them, until Ctrl-C or SIGTERM."""
    if arguments.launcher != "local" and arguments.agents is None:
        raise UsageError(
            f"--launcher {arguments.launcher} needs to know how many agents there may be at a time. Give "
            "--agents N."
        )
    memory = _memory(arguments.memory_per_agent)
    kept = None if arguments.checkpoints is None else checkpoints.absolute(arguments.checkpoints)
    token_file = arguments.token_file
    if token_file is not None:
        token_file = str(absolute(token_file, "The file with the token"))
    with (
        contextlib.closing(make_launcher(arguments.launcher, launch_options(arguments))) as launcher,
        place(store_url(arguments), checkpoints=kept, token_file=token_file) as found,
    ):
        _refuse(launcher, found, arguments)
        gpus = int(launcher.has_gpus()) if arguments.gpus_per_agent is None else arguments.gpus_per_agent
        need = Need(gpus=float(gpus), cpus=arguments.cpus_per_agent or 1, memory=memory)
        most, note = _most(launcher, need, arguments.agents)
        work = PoolWork(
            key=_key(found, need, arguments),
            queues=tuple(arguments.queues),
            labels=tuple(arguments.labels),
            idle=arguments.idle or _IDLE_SECONDS,
            checkpoints=kept,
            token_file=token_file,
        )
        task = _task(work, need, found)
        scaler = Scaler(launcher, found.source, task, most=most, told=told)
        told(
            f"Keeps up to {most} agent{'s' * (most != 1)} of the pool of {found.shown} started on "
            f"{launcher.name}: {kind(scaler.agent)}. {note}".rstrip()
        )
        return _kept(scaler, detach=arguments.detach, idle=work.idle)


def _task(work: PoolWork, need: Need, found: Place) -> Task:
    return Task(
        program=PROGRAM,
        pool=work,
        storage=found.url,
        gpus=int(need.gpus),
        cpus=need.cpus,
        memory=need.memory,
        folder=str(Path.cwd()),
        environment=environment(),
        grace=_GRACE_SECONDS,
    )


def _kept(scaler: Scaler, *, detach: bool, idle: float) -> int:
    with interruptible() as interrupt:
        scaler.run(interrupt)
        if not detach:
            scaler.leave()
        elif scaler.started:
            told(f"Agents that go on: {scaler.started}. Each leaves after {idle:g} s without a study.")
    return INTERRUPTED


def _refuse(launcher: Launcher, found: Place, arguments: argparse.Namespace) -> None:
    """Refuse what a launcher's agents could not do."""
    if arguments.detach and not launcher.outlives:
        raise UsageError(
            f"--detach: agents of the launcher {launcher.name} end with this command. Take it out."
        )
    if found.store is not None:
        refuse_file(launcher, found.store)
    elif launcher.spans_hosts and arguments.token_file is None:
        raise UsageError(
            f"Agents of the launcher {launcher.name} run on other machines, and read the server's token from "
            "a file there. Give one that all machines share: --token-file FILE."
        )


def _most(launcher: Launcher, need: Need, asked: int | None) -> tuple[int, str]:
    """Return how many agents there may be at a time, and what a person should know of that."""
    room = launcher.room(need)
    shares = launcher.oversubscribes and not need.gpus
    if not room and not (shares and asked):
        raise UsageError(
            f"An agent takes {need.gpus:g} GPUs and {need.cpus} CPU cores"
            f"{f' and {need.memory} bytes of memory' if need.memory else ''}, and the launcher "
            f"{launcher.name} has no room for one. Ask for less: --gpus-per-agent, --cpus-per-agent, "
            "--memory-per-agent."
        )
    if asked is None or asked <= room:
        return asked or room, ""
    if shares:
        return asked, f"There are CPU cores for {room}; more agents than that share them."
    if launcher.oversubscribes:
        raise UsageError(f"--agents {asked}: this machine has free GPUs for {room} of them. Ask for fewer.")
    return asked, f"There is room for {room} at a time; the others wait for it."


def _key(found: Place, need: Need, arguments: argparse.Namespace) -> str:
    """Return what this command's agents have in common, the same if it is given again by the same person."""
    given = {
        "store": found.shown,
        "user": user(),
        "queues": sorted(arguments.queues),
        "labels": sorted(arguments.labels),
        "need": [need.gpus, need.cpus, need.memory],
    }
    return hashlib.blake2b(json.dumps(given).encode(), digest_size=6).hexdigest()


def _memory(given: str | None) -> int | None:
    try:
        return in_bytes(given)
    except ValueError as error:
        raise UsageError(f"--memory-per-agent: {error}") from None
