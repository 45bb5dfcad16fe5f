"""All commands with their arguments: names, values and help.

A table without functions; imports nothing slow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tempopt.cli import argument_types as types
from tempopt.service.scenarios import SCENARIOS


class CommandArgument(NamedTuple):
    """One argument of a command: its names and the settings for argparse."""

    names: tuple[str, ...]
    settings: dict[str, Any]


class Command(NamedTuple):
    """One command: its help, the function that carries it out (``module:function``) and its arguments."""

    summary: str
    run: str
    arguments: tuple[CommandArgument, ...]


def command(summary: str, run: str, *arguments: CommandArgument) -> Command:
    """Return a command; ``run`` is its function, as ``module:function`` in :mod:`tempopt.cli`."""
    return Command(summary, f"tempopt.cli.{run}", arguments)


def argument(usage: str, help: str, **settings: Any) -> CommandArgument:
    """Return an argument.

    Args:
        usage: Its names and the name of its value, as in ``-o --output FILE`` or ``spec SPEC``; an option
            without a value is a flag.
        help: Its help.
        settings: Further settings for argparse.
    """
    *names, metavar = usage.split()
    if metavar.startswith("-"):
        return CommandArgument((*names, metavar), {"action": "store_true", "help": help, **settings})
    return CommandArgument(tuple(names), {"metavar": metavar, "help": help, **settings})


def repeatable(usage: str, help: str, **settings: Any) -> CommandArgument:
    """Return an option that may be given several times."""
    return argument(usage, help, action="append", default=[], **settings)


SPEC = argument("spec SPEC", "study spec: a YAML file, or the name of a bundled study")
NAME = argument("name NAME", "name of a study in the store")
STORE = (
    argument(
        "--storage URL",
        "URL of the database or server (default: TEMPOPT_STORAGE, else that of tempopt login, else "
        "sqlite:///tempopt.db)",
    ),
    argument(
        "--storage-file FILE", "file whose only line is that URL; keeps a password out of the process list"
    ),
)
WORKERS = argument(
    "--workers N",
    "number of concurrent trials; auto: as many as fit (default: the spec's, else auto)",
    type=types.workers,
)
LAUNCH_OPTION = repeatable(
    "--launch KEY=VALUE", "option of the launcher, for example partition=gpu; repeatable", type=types.option
)
ADDRESS = argument("--address URL", "address of the cluster; short for --launch address=URL")
LAUNCH = (
    argument(
        "--launcher NAME",
        "what starts the agents: local, ray, slurm, or package.module:Class (default: none; "
        "this command is itself the one agent)",
    ),
    LAUNCH_OPTION,
    ADDRESS,
    argument("--detach", "start the agents and return; follow the study with `tempopt show`"),
)
JOBS = (
    argument(
        "--launcher NAME",
        "launcher to ask about its jobs, if it is your own: package.module:Class (default: slurm, "
        "and ray at the address that you give)",
    ),
    LAUNCH_OPTION,
    ADDRESS,
)
CHECKPOINTS = argument(
    "--checkpoints URL",
    "where checkpoints are kept: a folder, or a URL such as s3://bucket/folder (default: the study's, "
    "else tempopt-runs)",
)
SET = repeatable(
    "--set KEY=VALUE", "set a key of the spec, for example data.root=/data or study.seed=1; repeatable"
)
OUTPUT = argument("-o --output FILE", "output file (default: standard output)")
NO_REPORT = argument("--no-report", "write no report at the end", action="store_false", dest="report")
VERBOSE = argument("--verbose", "print a line for every training")
JSON = argument("--json", "print JSON, for programs")
RUNNING = (WORKERS, CHECKPOINTS, NO_REPORT, VERBOSE, *LAUNCH)
"""Arguments of all commands that carry out a study."""

COMMANDS = {
    "search": command(
        "search a temperature schedule, prove it on fresh seeds and say what was found",
        "search:search",
        SPEC,
        *STORE,
        argument(
            "--trials N",
            "number of search trials (default: the spec's); +N adds N trials to the study",
            type=types.trials,
            default=types.Trials(),
        ),
        argument("--enqueue FILE", "YAML list of parameter sets to try first"),
        SET,
        argument("--name NAME", "name of the study (default: the spec's)"),
        *RUNNING,
        argument(
            "--submit",
            "let other agents train (`tempopt agent --any`), and watch; always so behind a server",
        ),
    ),
    "compare": command(
        "compare parameter sets, or values of a parameter, on fresh seeds; the exit code says what is shown",
        "search:compare",
        argument(
            "spec SPEC",
            "study spec: a YAML file, or the name of a bundled study; none with --command",
            nargs="?",
        ),
        argument(
            "sets SET",
            "parameter set, the reference first: '{temperature_init: 2, lr: 0.001}', or a YAML file "
            "that holds one; '{}' is the spec as it stands; NAME=SET names it (default: those of the "
            "spec's section compare:)",
            nargs="*",
            default=[],
        ),
        repeatable(
            "--vary KEY=V1,V2,...",
            "compare these values of a parameter, as in model.num_heads=1,2,4; a program gets them as "
            "typed; repeat it for each combination of several parameters",
        ),
        argument(
            "--command COMMAND",
            "in place of SPEC: the command of a run, with a placeholder for its seed and for each parameter "
            "of --vary, as in 'python train.py --seed {seed} --qk-gain {qk_gain}'; a new study each time",
            dest="program_command",
        ),
        argument(
            "--metric NAME",
            "with --command: what stands before the value in its output, or is reported by it; the last "
            "number counts",
        ),
        argument(
            "--direction NAME",
            "with --command: maximize or minimize",
            choices=("maximize", "minimize"),
        ),
        argument(
            "--all-pairs",
            "compare every two sets, not only each with the first, and name the first set that none "
            "is shown to beat",
        ),
        argument(
            "--from STUDY",
            "compare the best parameter sets of this finished study with its baseline",
            dest="from_study",
        ),
        argument(
            "--top K", "with --from: number of sets besides the baseline (default: 3)", type=types.count
        ),
        repeatable("--without NAME", "with --from: leave a parameter out of all sets; repeatable"),
        argument(
            "--from-storage URL",
            "with --from: URL of the database or server that has the study (default: --storage)",
        ),
        *STORE,
        argument(
            "--pairs N",
            "number of fresh seeds, each with a run of every set; A..B: a test after every A of them, and B "
            "at most (default: study.seeds.confirm)",
            type=types.pairs_range,
        ),
        argument(
            "--max-runs N",
            "refuse a comparison that could need more than N runs, without repetitions of killed ones "
            "(default: 1000)",
            type=types.count,
        ),
        SET,
        argument("--name NAME", "name of the study (default: the spec's with a short hash of the sets)"),
        argument("--json", "print the result as JSON, and the progress on standard error"),
        *RUNNING,
    ),
    "judge": command(
        "compare variants by results that exist; the exit code says what is shown",
        "judge:judge",
        argument(
            "results FILE",
            "CSV file with the columns variant, seed and value; an empty value is a run that failed",
        ),
        argument(
            "--direction NAME",
            "minimize where lower values are better; the output says which are (default: maximize)",
            choices=("maximize", "minimize"),
            default="maximize",
        ),
        argument("--baseline NAME", "variant that the others are compared with (default: the first)"),
        argument("--json", "print the result as JSON"),
    ),
    "evaluate": command(
        "find the best temperatures at inference, and generation, of trained weights; nothing is trained",
        "evaluate:evaluate",
        SPEC,
        argument(
            "--weights FILE", "checkpoint, state dict, or folder that save_pretrained wrote", required=True
        ),
        argument(
            "--trials N",
            "total number of parameter sets (default: study.trials)",
            type=types.count,
        ),
        *STORE,
        SET,
        argument(
            "--name NAME",
            "name of the Optuna study (default: the spec's with a short hash of spec and weights)",
        ),
        argument("--json", "print the result as JSON"),
    ),
    "resume": command(
        "continue a study from the database alone",
        "search:resume",
        NAME,
        *STORE,
        argument("--trials +N", "add N search trials", type=types.more_trials, default=0, dest="add_trials"),
        argument(
            "--pairs +N", "add N seeds to confirm on", type=types.more_pairs, default=0, dest="add_pairs"
        ),
        argument("--retry-failed", "repeat the runs that failed on every attempt"),
        *RUNNING,
    ),
    "explain": command(
        "explain a verdict: what each part of the winner is worth, simpler plans, learned temperatures",
        "search:explain",
        NAME,
        *STORE,
        *RUNNING,
    ),
    "agent": command(
        "add an agent to a running study, or one that serves every study, from any machine",
        "agent:agent",
        argument("name NAME", "name of a study in the store", nargs="?"),
        *STORE,
        argument(
            "--server URL",
            "server to work for, in place of a database: neither it nor the checkpoints' bucket is "
            "reached from here",
        ),
        argument(
            "--token-file FILE",
            "file whose only line is the token for the server (default: TEMPOPT_TOKEN, "
            "TEMPOPT_TOKEN_FILE, else that of tempopt login)",
        ),
        WORKERS,
        CHECKPOINTS,
        argument(
            "--any",
            "serve every unfinished study, one after another: the highest study.priority first, then the "
            "oldest",
        ),
        argument(
            "--until-idle SECONDS",
            "with --any: leave when no study is unfinished, or after SECONDS without a run to begin (60 if "
            "no number is given; default: wait for new studies)",
            type=types.seconds,
            nargs="?",
            const=60.0,
        ),
    ),
    "list": command("list the studies in the store", "show:list_studies", *STORE, JSON),
    "show": command(
        "show the progress and the verdict of a study",
        "show:show",
        NAME,
        *STORE,
        JSON,
        argument(
            "--watch SECONDS",
            "update the output every SECONDS until the study is done (default: 2)",
            nargs="?",
            type=types.seconds,
            const=2.0,
        ),
        argument("--full", "print all findings, and how many runs are over"),
        argument("--heads", "print the attention of heads as text"),
        *JOBS,
    ),
    "report": command(
        "write a study as one HTML page that opens offline",
        "report:report",
        NAME,
        *STORE,
        argument(
            "-o --output FILE",
            "output file; - for standard output (default: NAME.html in the current folder)",
        ),
        argument(
            "--plotlyjs WHERE",
            "inline: include plotly.js in the page; cdn: load it from the network, for a small file "
            "(default: inline)",
            choices=("inline", "cdn"),
            default="inline",
        ),
    ),
    "dashboard": command(
        "serve Optuna's dashboard with tempopt's plots and notes",
        "dashboard:dashboard",
        argument("name NAME", "study whose note and plots are written first", nargs="?"),
        *STORE,
        argument(
            "--port N",
            "port on 127.0.0.1; 0 selects a free one (default: 8080)",
            type=types.port,
            default=8080,
        ),
    ),
    "logs": command(
        "show the output of a study's runs",
        "studies:logs",
        NAME,
        argument(
            "ticket TICKET",
            "run to show, for example search-12 (default: a list of all runs)",
            nargs="*",
            default=[],
        ),
        argument("--attempt N", "show this attempt only", type=types.count),
        *STORE,
    ),
    "export": command(
        "write the recommended configuration as YAML for LightningCLI or as a Python script",
        "show:export",
        NAME,
        *STORE,
        argument(
            "--format FORMAT", "yaml or python (default: yaml)", choices=("yaml", "python"), default="yaml"
        ),
        argument("--winner", "write the winner of the search, even if it is not recommended"),
        OUTPUT,
    ),
    "dump": command(
        "write a study into a file, without secrets, to be stored or loaded elsewhere",
        "transfer:dump",
        NAME,
        *STORE,
        argument(
            "-o --output FILE",
            "output file, replaced if it exists (default: NAME.tempopt in the current folder)",
        ),
    ),
    "load": command(
        "read a study from a file into a database, where it can be continued",
        "transfer:load",
        argument("file FILE", "file that tempopt dump has written"),
        argument("--name NAME", "name of the study there (default: its name in the file)"),
        *STORE,
    ),
    "pause": command(
        "make every agent of a study write checkpoints and leave, until it is resumed",
        "studies:pause",
        NAME,
        *STORE,
        *JOBS,
    ),
    "stop": command(
        "end the search of a study and confirm what was found so far", "studies:stop", NAME, *STORE
    ),
    "delete": command(
        "delete a study with its trials, checkpoints and logs",
        "studies:delete",
        NAME,
        *STORE,
        argument("--yes", "do not ask"),
        argument("--force", "delete it even while agents work on it"),
        *JOBS,
    ),
    "gc": command(
        "remove checkpoints that are no longer needed",
        "studies:gc",
        argument("name NAME", "name of a study (default: all in the store)", nargs="?"),
        *STORE,
        argument("--dry-run", "list them only"),
    ),
    "storage": command(
        "migrate a database written by an older version",
        "studies:storage",
        argument("action upgrade", "the only action", choices=("upgrade",)),
        *STORE,
    ),
    "check": command(
        "check a spec without searching",
        "specs:check",
        SPEC,
        SET,
        argument("--dry-run", "also train two steps and list the attention layers that get a temperature"),
    ),
    "plan": command(
        "forecast the cost of a study and the gain that it can show",
        "specs:plan",
        SPEC,
        *STORE,
        argument("--trials N", "number of search trials (default: the spec's)", type=types.count),
        WORKERS,
        SET,
        argument(
            "--earlier NAME",
            "study in the database whose runs show the noise and the time of a run (default: this "
            "study, or one of study.warm_start)",
        ),
        argument(
            "--run-hours H",
            "hours of one run (default: measured, in a study or else in a dry run)",
            type=types.hours,
        ),
        JSON,
    ),
    "init": command(
        "write a commented spec for a LightningModule of your own",
        "init:init",
        argument("module IMPORT_PATH", "import path, for example my_package.my_module.MyModule"),
        argument(
            "--scenario NAME",
            f"write ranges and a first parameter set from published advice: {', '.join(SCENARIOS)}",
            choices=tuple(SCENARIOS),
        ),
        OUTPUT,
    ),
    "serve": command(
        "serve the studies of a database over HTTP, to people, programs and agents",
        "serve:serve",
        *STORE,
        argument(
            "--checkpoints URL",
            "where checkpoints are kept: a folder, or a URL such as s3://bucket/folder (default: "
            "tempopt-runs)",
            default="tempopt-runs",
        ),
        argument(
            "--host ADDRESS",
            "address to listen on; any but a loopback address requires that there are tokens "
            "(default: 127.0.0.1)",
            default="127.0.0.1",
        ),
        argument(
            "--port N",
            "port to listen on; 0 selects a free one (default: 8765)",
            type=types.port,
            default=8765,
        ),
        argument("--certificate FILE", "certificate chain, for TLS; with --key"),
        argument("--key FILE", "private key of the certificate"),
        repeatable(
            "--trust-proxy NETWORK",
            "address or network of a proxy whose X-Forwarded-For and -Proto count; repeatable",
            type=types.network,
        ),
    ),
    "mcp": command(
        "serve the studies as tools to a coding agent, within a budget, by the Model Context Protocol",
        "mcp:mcp",
        argument(
            "--gpu-hours H",
            "maximal GPU-hours of its studies; without a GPU, training hours (default: no limit)",
            type=types.number,
        ),
        argument(
            "--runs N",
            "maximal number of trainings of its studies, of every kind (default: no limit)",
            type=types.count,
        ),
        argument(
            "--user USER",
            "with a database: owner of the studies and of the budget (default: mcp)",
            type=types.user,
        ),
        WORKERS,
        *STORE,
    ),
    "token": command(
        "create, list or revoke the tokens that a server asks for",
        "token:token",
        argument("action ACTION", "create, list or revoke", choices=("create", "list", "revoke")),
        argument("id ID", "id of the token to revoke", nargs="?"),
        argument("--name NAME", "name of the token's holder"),
        repeatable(
            "--scope SCOPE",
            "scope: view, submit, agent or admin; repeatable",
            choices=("view", "submit", "agent", "admin"),
        ),
        argument(
            "--studies PREFIX", "prefix of the names of studies that it may access (default: all studies)"
        ),
        argument("--user USER", "owner of the studies that are created with it (default: the name)"),
        argument("--expires TIME", "lifetime, as in 30d (default: until revoked)"),
        *STORE,
        JSON,
    ),
    "login": command(
        "log in to a server, which commands then use where no storage is given",
        "login:login",
        argument("server URL", "URL of the server, as in https://tempopt.example.com"),
        argument("--token-file FILE", "file whose only line is the token (default: it is asked for)"),
    ),
    "logout": command(
        "forget a server and its token",
        "login:logout",
        argument("server URL", "URL of the server (default: that of the last login)", nargs="?"),
    ),
}
