"""Arguments that several commands take: names, what they take, and their help.

Carries nothing out, and imports nothing that takes time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tempopt.cli import argument_types


class CommandArgument(NamedTuple):
    """One argument of a command: its names and what argparse is to know of it."""

    names: tuple[str, ...]
    settings: dict[str, Any]


class Command(NamedTuple):
    """One command: its help, the function that carries it out (``module:function``) and its arguments."""

    summary: str
    run: str
    arguments: tuple[CommandArgument, ...]


def argument(*names: str, **settings: Any) -> CommandArgument:
    """Return an argument: its names, and what argparse is to know of it."""
    return CommandArgument(names, settings)


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
    type=argument_types.workers,
    help="number of concurrent trials; auto: as many as fit (default: the spec's, else auto)",
)
LAUNCH_OPTION = argument(
    "--launch",
    metavar="KEY=VALUE",
    type=argument_types.option,
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
SUBMIT = argument(
    "--submit",
    action="store_true",
    help="leave the trainings to agents (`tempopt agent --any`), and watch; behind a server always so",
)
ANY = (
    argument(
        "--any",
        action="store_true",
        help="serve every unfinished study, one after another: the highest study.priority first, then the "
        "oldest",
    ),
    argument(
        "--until-idle",
        metavar="SECONDS",
        type=argument_types.seconds,
        nargs="?",
        const=60.0,
        help="with --any: leave when no study is unfinished, or after so long without a run to begin (60 if "
        "no number is given; default: wait for new studies)",
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
OUTPUT = argument("-o", "--output", metavar="FILE", help="output file (default: standard output)")
NO_REPORT = argument("--no-report", action="store_false", dest="report", help="write no report at the end")
VERBOSE = argument("--verbose", action="store_true", help="print a line for every training")
JSON = argument("--json", action="store_true", help="print JSON, for programs")
