"""Every command that can be typed, with its arguments: names, what they take, and their help.

A table; carries nothing out, and imports nothing that takes time.
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


def _argument(*names: str, **settings: Any) -> Argument:
    return Argument(names, settings)


_SPEC = _argument("spec", metavar="SPEC", help="study spec: a YAML file, or the name of a bundled study")
_NAME = _argument("name", metavar="NAME", help="name of a study in the store")
_STORE = (
    _argument(
        "--storage", metavar="URL", help="database URL (default: TEMPOPT_STORAGE, else sqlite:///tempopt.db)"
    ),
    _argument(
        "--storage-file",
        metavar="FILE",
        help="file whose only line is the database URL; keeps a password out of the process list",
    ),
)
_WORKERS = _argument(
    "--workers",
    metavar="N",
    type=values.workers,
    help="number of concurrent trials; auto: as many as fit (default: the spec's, else auto)",
)
_LAUNCH_OPTION = _argument(
    "--launch",
    metavar="KEY=VALUE",
    type=values.option,
    action="append",
    default=[],
    help="option of the launcher, for example partition=gpu; repeatable",
)
_ADDRESS = _argument(
    "--address", metavar="URL", help="address of the cluster; short for --launch address=URL"
)
_LAUNCH = (
    _argument(
        "--launcher",
        metavar="NAME",
        help="what starts the agents: local, ray, slurm, or package.module:Class (default: none; this "
        "command is itself the one agent)",
    ),
    _LAUNCH_OPTION,
    _ADDRESS,
    _argument(
        "--detach",
        action="store_true",
        help="start the agents and return; follow the study with `tempopt show`",
    ),
)
_JOBS = (
    _argument(
        "--launcher",
        metavar="NAME",
        help="launcher to ask about its jobs, if it is your own: package.module:Class (default: slurm, and "
        "ray at the address that you give)",
    ),
    _LAUNCH_OPTION,
    _ADDRESS,
)
_CHECKPOINTS = _argument(
    "--checkpoints",
    metavar="URL",
    help="where checkpoints are kept: a folder, or a URL such as s3://bucket/folder (default: the study's, "
    "else tempopt-runs)",
)
_SET = _argument(
    "--set",
    metavar="KEY=VALUE",
    action="append",
    default=[],
    help="set a key of the spec, for example data.root=/data or study.seed=1; repeatable",
)
_DASHBOARD = _argument(
    "--dashboard",
    action="store_true",
    help="serve a dashboard of the study while this command runs",
)
_OUTPUT = _argument("-o", "--output", metavar="FILE", help="output file (default: standard output)")
_NO_REPORT = _argument("--no-report", action="store_false", dest="report", help="write no report at the end")
_JSON = _argument("--json", action="store_true", help="print JSON, for programs")

COMMANDS = {
    "search": Command(
        "search a temperature schedule, prove it on fresh seeds and say what was found",
        "tempopt.cli.search:search",
        (
            _SPEC,
            *_STORE,
            _argument(
                "--trials",
                metavar="N",
                type=values.trials,
                default=values.Trials(),
                help="number of search trials (default: the spec's); +N adds N trials to the study",
            ),
            _argument("--enqueue", metavar="FILE", help="YAML list of parameter sets to try first"),
            _argument(
                "--amend",
                action="store_true",
                help="change the search space of a study that has begun to the spec's",
            ),
            _WORKERS,
            _SET,
            _argument("--name", metavar="NAME", help="name of the study (default: the spec's)"),
            _CHECKPOINTS,
            _DASHBOARD,
            _NO_REPORT,
            *_LAUNCH,
        ),
    ),
    "compare": Command(
        "compare parameter sets on fresh seeds; the exit code says whether one is better than the first",
        "tempopt.cli.compare:compare",
        (
            _SPEC,
            _argument(
                "sets",
                metavar="SET",
                nargs="*",
                default=[],
                help="parameter set, the reference first: '{temperature_init: 2, lr: 0.001}', or a YAML file "
                "that holds one; '{}' is the spec as it stands; NAME=SET names it (default: those of the "
                "spec's section compare:)",
            ),
            *_STORE,
            _argument(
                "--pairs",
                metavar="N",
                type=values.pairs,
                help="number of fresh seeds, each with a run of every set (default: study.seeds.confirm)",
            ),
            _argument(
                "--max-runs",
                metavar="N",
                type=values.count,
                help="refuse to begin if it could take more than N runs (default: no limit)",
            ),
            _WORKERS,
            _SET,
            _argument(
                "--name",
                metavar="NAME",
                help="name of the study (default: the spec's with a short hash of the sets)",
            ),
            _CHECKPOINTS,
            _argument(
                "--json",
                action="store_true",
                help="print the result as JSON, and the progress on standard error",
            ),
            _DASHBOARD,
            _NO_REPORT,
            *_LAUNCH,
        ),
    ),
    "resume": Command(
        "continue a study from the database alone",
        "tempopt.cli.search:resume",
        (
            _NAME,
            *_STORE,
            _argument(
                "--trials",
                metavar="+N",
                type=values.more_trials,
                default=values.Trials(),
                help="add N search trials",
            ),
            _argument(
                "--pairs",
                metavar="+N",
                type=values.more_pairs,
                default=0,
                help="add N seeds to confirm on",
            ),
            _argument(
                "--amend",
                metavar="KEY=VALUE",
                action="append",
                default=[],
                help="change the search space, for example search.lr='{low: 0.001, high: 0.1, log: true}'; "
                "null takes a parameter out; repeatable",
            ),
            _argument(
                "--retry-failed",
                action="store_true",
                help="train the runs again that failed on every attempt",
            ),
            _WORKERS,
            _CHECKPOINTS,
            _DASHBOARD,
            _NO_REPORT,
            *_LAUNCH,
        ),
    ),
    "agent": Command(
        "add an agent to a running study, from any machine",
        "tempopt.cli.search:agent",
        (_NAME, *_STORE, _WORKERS, _CHECKPOINTS),
    ),
    "list": Command("list the studies in the store", "tempopt.cli.show:list_studies", (*_STORE, _JSON)),
    "show": Command(
        "show the progress and the verdict of a study",
        "tempopt.cli.show:show",
        (
            _NAME,
            *_STORE,
            _JSON,
            _argument(
                "--watch",
                metavar="SECONDS",
                nargs="?",
                type=values.seconds,
                const=2.0,
                help="update the output every SECONDS until the study is done (default: 2)",
            ),
            _argument("--heads", action="store_true", help="print what heads attend to, as text"),
            *_JOBS,
        ),
    ),
    "report": Command(
        "write a study as one HTML page, which opens offline",
        "tempopt.cli.report:report",
        (
            _NAME,
            *_STORE,
            _argument(
                "-o",
                "--output",
                metavar="FILE",
                help="output file; - for standard output (default: NAME.html in the current folder)",
            ),
            _argument(
                "--plotlyjs",
                choices=("inline", "cdn"),
                default="inline",
                help="include plotly.js in the page, or load it from the network for a small file "
                "(default: inline)",
            ),
        ),
    ),
    "dashboard": Command(
        "serve Optuna's dashboard with tempopt's plots and notes",
        "tempopt.cli.dashboard:dashboard",
        (
            _argument("name", metavar="NAME", nargs="?", help="study to open and refresh first"),
            *_STORE,
            _argument(
                "--host",
                metavar="ADDRESS",
                default="127.0.0.1",
                help="address to listen on; any but a loopback address requires a token or password "
                "(default: 127.0.0.1)",
            ),
            _argument(
                "--port",
                metavar="N",
                type=values.port,
                default=8080,
                help="port to listen on; 0 selects a free one (default: 8080)",
            ),
            _argument("--user", metavar="NAME", help="require this user name and the password"),
            _argument(
                "--password-file",
                metavar="FILE",
                help="file whose only line is the password, with --user (or set TEMPOPT_DASHBOARD_PASSWORD)",
            ),
            _argument(
                "--password", metavar="TEXT", help="the password itself; it is visible in the process list"
            ),
            _argument(
                "--token-file",
                metavar="FILE",
                help="require the token that is this file's only line (or set "
                "TEMPOPT_DASHBOARD_TOKEN); visitors add ?token=... to the address once",
            ),
            _argument(
                "--trusted-proxy",
                metavar="ADDRESS",
                help="IP address of a proxy with TLS whose X-Forwarded-For, -Host and -Proto are believed",
            ),
        ),
    ),
    "logs": Command(
        "show the output of a study's runs",
        "tempopt.cli.logs:logs",
        (
            _NAME,
            _argument(
                "ticket",
                metavar="TICKET",
                nargs="*",
                default=[],
                help="run to show, for example search-12 (default: a list of all runs)",
            ),
            _argument("--attempt", metavar="N", type=values.count, help="show this attempt only"),
            *_STORE,
        ),
    ),
    "export": Command(
        "write what is recommended as YAML for LightningCLI or as a Python script",
        "tempopt.cli.show:export",
        (
            _NAME,
            *_STORE,
            _argument("--format", choices=("yaml", "python"), default="yaml", help="default: yaml"),
            _argument(
                "--winner",
                action="store_true",
                help="write the winner of the search, whatever is recommended",
            ),
            _OUTPUT,
        ),
    ),
    "pause": Command(
        "make every agent of a study write checkpoints and leave, until it is resumed",
        "tempopt.cli.care:pause",
        (_NAME, *_STORE, *_JOBS),
    ),
    "stop": Command(
        "end the search of a study and confirm what was found so far",
        "tempopt.cli.care:stop",
        (_NAME, *_STORE),
    ),
    "delete": Command(
        "delete a study with its trials, checkpoints and logs",
        "tempopt.cli.care:delete",
        (
            _NAME,
            *_STORE,
            _argument("--yes", action="store_true", help="do not ask"),
            _argument("--force", action="store_true", help="delete it even while agents work on it"),
            *_JOBS,
        ),
    ),
    "gc": Command(
        "remove checkpoints that are no longer needed",
        "tempopt.cli.care:gc",
        (
            _argument("name", metavar="NAME", nargs="?", help="name of a study (default: all in the store)"),
            *_STORE,
            _argument("--dry-run", action="store_true", help="list them only"),
        ),
    ),
    "storage": Command(
        "migrate a database written by an older version",
        "tempopt.cli.care:storage",
        (
            _argument("action", metavar="upgrade", choices=("upgrade",), help="the only action"),
            *_STORE,
        ),
    ),
    "check": Command(
        "check a spec without searching",
        "tempopt.cli.check:check",
        (
            _SPEC,
            _SET,
            _argument(
                "--dry-run",
                action="store_true",
                help="also train two steps and list the attention layers that get a temperature",
            ),
        ),
    ),
    "plan": Command(
        "say what a study costs and what gain it can show, before it is begun",
        "tempopt.cli.plan:plan",
        (
            _SPEC,
            *_STORE,
            _argument(
                "--trials",
                metavar="N",
                type=values.count,
                help="number of search trials (default: the spec's)",
            ),
            _WORKERS,
            _SET,
            _argument(
                "--earlier",
                metavar="NAME",
                help="study in the database whose runs show the noise (default: this study, or one of "
                "study.warm_start)",
            ),
            _JSON,
        ),
    ),
    "init": Command(
        "write a commented spec for a LightningModule of your own",
        "tempopt.cli.init:init",
        (
            _argument(
                "module", metavar="IMPORT_PATH", help="import path, for example my_package.my_module.MyModule"
            ),
            _OUTPUT,
        ),
    ),
    "completion": Command(
        "print the script with which a shell completes commands, options, specs and study names",
        "tempopt.cli.completion:completion",
        (
            _argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish"),
            _argument(
                "words",
                metavar="WORD",
                nargs="*",
                default=[],
                help="print what can complete the last of these words instead; the script asks so",
            ),
        ),
    ),
    "help": Command(
        "show the help of a command",
        "tempopt.cli.completion:show_help",
        (
            _argument(
                "about",
                metavar="COMMAND",
                nargs="?",
                help="name of a command (default: a list of all)",
            ),
        ),
    ),
}
