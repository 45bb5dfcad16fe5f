"""``tempopt queue`` and ``tempopt quota``: the pool, shown and set."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tempopt.cli import DONE
from tempopt.cli.output import in_columns, shown
from tempopt.errors import UsageError
from tempopt.records.pool import Quota
from tempopt.study import pool


def queue(arguments: argparse.Namespace) -> int:
    """Show the pool, or move a study in it."""
    if arguments.name is None:
        if arguments.priority is not None or arguments.to is not None:
            raise UsageError("Give the study that is to be moved: tempopt queue NAME --priority 5")
        return _show(arguments)
    if arguments.priority is None and arguments.to is None:
        raise UsageError(
            f"Say how {arguments.name} is to be moved: --priority N, --to QUEUE, or both. To show the pool: "
            "tempopt queue"
        )
    found, priority = pool.place(
        arguments.url, arguments.name, queue=arguments.to, priority=arguments.priority
    )
    print(f"{arguments.name} is in the queue {found}, with priority {priority}.")
    return DONE


def _show(arguments: argparse.Namespace) -> int:
    view = pool.pool(arguments.url)
    if arguments.json:
        print(json.dumps(view, indent=2))
        return DONE
    agents = view["agents"]
    busy = sum(each["study"] is not None for each in agents)
    print(f"Agents: {len(agents)}, of which {busy} serve a study")
    for study in view["studies"]:
        study["agents"] = f"{study['agents']} of {study['wanted']}"
    _table(
        "Studies, in the order in which they get the next agent",
        view["studies"],
        ("study", "owner", "queue", "priority", "labels", "agents", "waiting"),
    )
    for each in agents:
        each["for"] = _lasting(each["seconds"])
        each["study"] = each["study"] or ("another's" if each["study"] else "idle")
    _table("Agents", agents, ("agent", "token", "queues", "labels", "gpus", "study", "for"))
    for each in view["users"]:
        each["7 days"] = f"{each['gpu_hours']:.2f} GPU-hours"
    _table("Users", view["users"], ("queue", "user", "weight", "agents", "7 days"))
    for agent in agents:
        for study, why in agent["unable"].items():
            print(f"{agent['agent']} cannot serve {study}: {_line(why)}")
    return DONE


def quota(arguments: argparse.Namespace) -> int:
    """List, set or remove quotas."""
    numbers = {
        "weight": arguments.weight,
        "gpu_hours": arguments.gpu_hours,
        "days": arguments.days,
        "agents": arguments.agents,
        "priority": arguments.priority,
    }
    given = {name: value for name, value in numbers.items() if value is not None}
    if arguments.action != "set" and given:
        option = next(iter(given)).replace("_", "-")
        raise UsageError(f"--{option} is for tempopt quota set. Take it out.")
    if arguments.json and arguments.action != "list":
        raise UsageError("--json is for tempopt quota list. Take it out.")
    queue, user = arguments.queue or "", arguments.user or ""
    if arguments.action == "set":
        if not given:
            raise UsageError("Say what is set, as in --weight 2 or --gpu-hours 100 --days 30.")
        pool.set_quota(arguments.url, Quota(queue=queue, user=user, **given))
        print(f"The quota of {_whose(queue, user)} is set.")
    elif arguments.action == "remove":
        pool.remove_quota(arguments.url, queue=queue, user=user)
        print(f"The quota of {_whose(queue, user)} is removed.")
    else:
        rows = pool.quotas(arguments.url)
        found = [pool.quota_json(each) for each in rows if queue in ("", each.queue)]
        found = [each for each in found if user in ("", each["user"])]
        if arguments.json:
            print(json.dumps(found, indent=2))
        else:
            columns = ("queue", "user", "weight", "gpu_hours", "days", "agents", "priority")
            rows_shown = [{**e, "queue": e["queue"] or "every", "user": e["user"] or "all"} for e in found]
            _table("Quotas", rows_shown, columns)
    return DONE


def _whose(queue: str, user: str) -> str:
    return " in ".join([user] * bool(user) + [f"the queue {queue}"] * bool(queue))


def _lasting(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    print(f"\n{title}" if rows else f"\n{title}: none")
    if not rows:
        return
    told = [{name: _text(row[name]) for name in columns} for row in rows]
    for line in in_columns(told, columns):
        print(f"  {line}")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else _line(str(value))


def _line(text: str) -> str:
    """Return what somebody else has said as one line that does not steer a terminal."""
    return " ".join(shown(text).split())
