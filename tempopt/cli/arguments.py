"""Arguments that several commands take: names, what they take, and their help.

Carries nothing out, and imports nothing that takes time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tempopt.cli import values


class Argument(NamedTuple):
    """One argument of a command: its names and what argparse is to know of it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


class Command(NamedTuple):
    """One command: its help, the function that carries it out (``module:function``) and its arguments."""

    summary: str
    run: str
    arguments: tuple[Argument, ...]


def argument(*names: str, **settings: Any) -> Argument:
    """Return an argument: its names, and what argparse is to know of it."""
    return Argument(names, settings)


SPEC = argument("spec", metavar="SPEC", help="study spec: a YAML file, or the name of a bundled study")
NAME = argument("name", metavar="NAME", help="name of a study in the store")
STORE = (
    argument(
        "--storage",
        metavar="URL",
        help="URL of the database or server (default: TEMPOPT_STORAGE, else that of tempopt login, else "
        "sqlite:///tempopt.db)",
    ),
    argument(
        "--storage-file",
        metavar="FILE",
        help="file whose only line is that URL; keeps a password out of the process list",
    ),
)
TOKEN_FILE = argument(
    "--token-file",
    metavar="FILE",
    help="file whose only line is the token for the server (default: TEMPOPT_TOKEN, TEMPOPT_TOKEN_FILE, else "
    "that of tempopt login)",
)
WORKERS = argument(
    "--workers",
    metavar="N",
    type=values.workers,
    help="number of concurrent trials; auto: as many as fit (default: the spec's, else auto)",
)
LAUNCH_OPTION = argument(
    "--launch",
    metavar="KEY=VALUE",
    type=values.option,
    action="append",
    default=[],
    help="option of the launcher, for example partition=gpu; repeatable",
)
ADDRESS = argument("--address", metavar="URL", help="address of the cluster; short for --launch address=URL")
LAUNCH = (
    argument(
        "--launcher",
        metavar="NAME",
        help="what starts the agents: local, ray, slurm, or package.module:Class (default: none; "
        "this command is itself the one agent)",
    ),
    LAUNCH_OPTION,
    ADDRESS,
    argument(
        "--detach",
        action="store_true",
        help="start the agents and return; follow the study with `tempopt show`",
    ),
)
IN_POOL = (
    argument(
        "--pool",
        action="store_true",
        help="leave the trainings to the agents of the pool, and watch; behind a server that is always so",
    ),
    argument(
        "--queue",
        metavar="QUEUE",
        type=values.label,
        help="queue of the pool that the study is begun in (default: the spec's, else default)",
    ),
    argument(
        "--priority",
        metavar="N",
        type=values.priority,
        help="priority that it is begun with in the pool (default: the spec's, else 0)",
    ),
    argument(
        "--label",
        metavar="LABEL",
        dest="labels",
        type=values.label,
        action="append",
        default=[],
        help="label that an agent of the pool must have to serve it; repeatable (default: the spec's)",
    ),
)
POOL = (
    argument(
        "--pool",
        action="store_true",
        help="serve every study in turn, by priority and fair share, in place of one",
    ),
    argument(
        "--queue",
        metavar="QUEUE",
        dest="queues",
        type=values.label,
        action="append",
        default=[],
        help="with --pool: serve studies of this queue only; repeatable (default: every queue)",
    ),
    argument(
        "--label",
        metavar="LABEL",
        dest="labels",
        type=values.label,
        action="append",
        default=[],
        help="with --pool: a label of this agent; it serves studies all of whose labels it has; repeatable",
    ),
    argument(
        "--gpus-per-agent",
        metavar="N",
        type=values.none_or_more,
        help="with --pool: number of its GPUs (default: one where there are any)",
    ),
    argument(
        "--idle",
        metavar="SECONDS",
        type=values.seconds,
        help="with --pool: leave after so long without a study (default: never; 60 with --launcher)",
    ),
)
POOL_LAUNCH = (
    argument(
        "--launcher",
        metavar="NAME",
        help="with --pool: start agents as there is work for them, by local, ray, slurm or "
        "package.module:Class (default: none; this command is itself an agent)",
    ),
    LAUNCH_OPTION,
    ADDRESS,
    argument(
        "--agents",
        metavar="N",
        type=values.count,
        help="with --launcher: most agents at a time (default: as many as fit on this machine; to be given "
        "for a cluster)",
    ),
    argument(
        "--cpus-per-agent",
        metavar="N",
        type=values.count,
        help="with --launcher: CPU cores of each agent (default: 1)",
    ),
    argument(
        "--memory-per-agent",
        metavar="SIZE",
        help="with --launcher: main memory of each agent, as in 16GB (default: the launcher's)",
    ),
    argument(
        "--detach",
        action="store_true",
        help="with --launcher: agents on a cluster go on when this command ends, until nothing is left to do",
    ),
)
JOBS = (
    argument(
        "--launcher",
        metavar="NAME",
        help="launcher to ask about its jobs, if it is your own: package.module:Class (default: slurm, "
        "and ray at the address that you give)",
    ),
    LAUNCH_OPTION,
    ADDRESS,
)
CHECKPOINTS = argument(
    "--checkpoints",
    metavar="URL",
    help="where checkpoints are kept: a folder, or a URL such as s3://bucket/folder (default: the study's, "
    "else tempopt-runs)",
)
SET = argument(
    "--set",
    metavar="KEY=VALUE",
    action="append",
    default=[],
    help="set a key of the spec, for example data.root=/data or study.seed=1; repeatable",
)
DASHBOARD = argument(
    "--dashboard",
    action="store_true",
    help="serve a dashboard of the study while this command runs",
)
OUTPUT = argument("-o", "--output", metavar="FILE", help="output file (default: standard output)")
NO_REPORT = argument("--no-report", action="store_false", dest="report", help="write no report at the end")
JSON = argument("--json", action="store_true", help="print JSON, for programs")
