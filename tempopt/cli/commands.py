"""Every command that can be typed, with its arguments: names, what they take, and their help.

A table; carries nothing out, and imports nothing that takes time.
"""

from __future__ import annotations

from tempopt.cli import argument_types
from tempopt.cli.arguments import (
    ANY,
    CHECKPOINTS,
    JOBS,
    JSON,
    LAUNCH,
    NAME,
    NO_REPORT,
    OUTPUT,
    SET,
    SPEC,
    STORE,
    SUBMIT,
    TOKEN_FILE,
    VERBOSE,
    WORKERS,
    argument,
)
from tempopt.cli.arguments import Command as Command
from tempopt.cli.arguments import CommandArgument as CommandArgument
from tempopt.cli.service_commands import SERVICE
from tempopt.service.scenarios import SCENARIOS

COMMANDS = {
    "search": Command(
        "search a temperature schedule, prove it on fresh seeds and say what was found",
        "tempopt.cli.search:search",
        (
            SPEC,
            *STORE,
            argument(
                "--trials",
                metavar="N",
                type=argument_types.trials,
                default=argument_types.Trials(),
                help="number of search trials (default: the spec's); +N adds N trials to the study",
            ),
            argument("--enqueue", metavar="FILE", help="YAML list of parameter sets to try first"),
            WORKERS,
            SET,
            argument("--name", metavar="NAME", help="name of the study (default: the spec's)"),
            CHECKPOINTS,
            NO_REPORT,
            VERBOSE,
            *LAUNCH,
            SUBMIT,
        ),
    ),
    "compare": Command(
        "compare parameter sets, or values of a parameter, on fresh seeds; the exit code says what is shown",
        "tempopt.cli.compare:compare",
        (
            SPEC,
            argument(
                "sets",
                metavar="SET",
                nargs="*",
                default=[],
                help="parameter set, the reference first: '{temperature_init: 2, lr: 0.001}', or a YAML file "
                "that holds one; '{}' is the spec as it stands; NAME=SET names it (default: those of the "
                "spec's section compare:)",
            ),
            argument(
                "--vary",
                metavar="KEY=V1,V2,...",
                action="append",
                default=[],
                help="compare these values of a parameter, as in model.num_heads=1,2,4; repeat it for each "
                "combination of several parameters",
            ),
            argument(
                "--all-pairs",
                action="store_true",
                help="compare each two sets, not only each with the first, and name the first set that none "
                "is shown to beat",
            ),
            argument(
                "--from",
                metavar="STUDY",
                dest="from_study",
                help="compare the best parameter sets of this finished study with its baseline",
            ),
            argument(
                "--top",
                metavar="K",
                type=argument_types.count,
                help="with --from: how many sets beside the baseline (default: 3)",
            ),
            argument(
                "--without",
                metavar="NAME",
                action="append",
                default=[],
                help="with --from: leave a parameter out of all sets; repeatable",
            ),
            argument(
                "--from-storage",
                metavar="URL",
                help="with --from: URL of the database or server that has the study (default: --storage)",
            ),
            *STORE,
            argument(
                "--pairs",
                metavar="N",
                type=argument_types.pairs,
                help="number of fresh seeds, each with a run of every set (default: study.seeds.confirm)",
            ),
            argument(
                "--max-runs",
                metavar="N",
                type=argument_types.count,
                help="refuse to begin if it could take more than N runs (default: 1000)",
            ),
            WORKERS,
            SET,
            argument(
                "--name",
                metavar="NAME",
                help="name of the study (default: the spec's with a short hash of the sets)",
            ),
            CHECKPOINTS,
            argument(
                "--json",
                action="store_true",
                help="print the result as JSON, and the progress on standard error",
            ),
            NO_REPORT,
            VERBOSE,
            *LAUNCH,
        ),
    ),
    "evaluate": Command(
        "find the best temperatures at inference, and generation, of trained weights; nothing is trained",
        "tempopt.cli.evaluate:evaluate",
        (
            SPEC,
            argument(
                "--weights",
                metavar="FILE",
                required=True,
                help="checkpoint, state dict, or folder that save_pretrained wrote",
            ),
            argument(
                "--trials",
                metavar="N",
                type=argument_types.count,
                help="how many parameter sets are evaluated in all (default: study.trials)",
            ),
            *STORE,
            SET,
            argument(
                "--name",
                metavar="NAME",
                help="name of the Optuna study (default: the spec's with a short hash of spec and weights)",
            ),
            argument("--json", action="store_true", help="print the result as JSON"),
        ),
    ),
    "resume": Command(
        "continue a study from the database alone",
        "tempopt.cli.search:resume",
        (
            NAME,
            *STORE,
            argument(
                "--trials",
                metavar="+N",
                type=argument_types.more_trials,
                default=argument_types.Trials(),
                help="add N search trials",
            ),
            argument(
                "--pairs",
                metavar="+N",
                type=argument_types.more_pairs,
                default=0,
                help="add N seeds to confirm on",
            ),
            argument(
                "--retry-failed",
                action="store_true",
                help="train the runs again that failed on every attempt",
            ),
            WORKERS,
            CHECKPOINTS,
            NO_REPORT,
            VERBOSE,
            *LAUNCH,
        ),
    ),
    "explain": Command(
        "explain a verdict: what each part of the winner is worth, simpler plans, learned temperatures",
        "tempopt.cli.search:explain",
        (NAME, *STORE, WORKERS, CHECKPOINTS, NO_REPORT, VERBOSE, *LAUNCH),
    ),
    "agent": Command(
        "add an agent to a running study, or one that serves every study, from any machine",
        "tempopt.cli.agent:agent",
        (
            argument("name", metavar="NAME", nargs="?", help="name of a study in the store"),
            *STORE,
            argument(
                "--server",
                metavar="URL",
                help="server to work for, in place of a database: neither it nor the checkpoints' bucket is "
                "reached from here",
            ),
            TOKEN_FILE,
            WORKERS,
            CHECKPOINTS,
            *ANY,
        ),
    ),
    "list": Command("list the studies in the store", "tempopt.cli.list_studies:list_studies", (*STORE, JSON)),
    "show": Command(
        "show the progress and the verdict of a study",
        "tempopt.cli.show:show",
        (
            NAME,
            *STORE,
            JSON,
            argument(
                "--watch",
                metavar="SECONDS",
                nargs="?",
                type=argument_types.seconds,
                const=2.0,
                help="update the output every SECONDS until the study is done (default: 2)",
            ),
            argument("--full", action="store_true", help="print all findings, and how many runs are over"),
            argument("--heads", action="store_true", help="print what heads attend to, as text"),
            *JOBS,
        ),
    ),
    "report": Command(
        "write a study as one HTML page, which opens offline",
        "tempopt.cli.report:report",
        (
            NAME,
            *STORE,
            argument(
                "-o",
                "--output",
                metavar="FILE",
                help="output file; - for standard output (default: NAME.html in the current folder)",
            ),
            argument(
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
            argument("name", metavar="NAME", nargs="?", help="study whose note and plots are written first"),
            *STORE,
            argument(
                "--port",
                metavar="N",
                type=argument_types.port,
                default=8080,
                help="port on 127.0.0.1; 0 selects a free one (default: 8080)",
            ),
        ),
    ),
    "logs": Command(
        "show the output of a study's runs",
        "tempopt.cli.logs:logs",
        (
            NAME,
            argument(
                "ticket",
                metavar="TICKET",
                nargs="*",
                default=[],
                help="run to show, for example search-12 (default: a list of all runs)",
            ),
            argument("--attempt", metavar="N", type=argument_types.count, help="show this attempt only"),
            *STORE,
        ),
    ),
    "export": Command(
        "write what is recommended as YAML for LightningCLI or as a Python script",
        "tempopt.cli.show:export",
        (
            NAME,
            *STORE,
            argument("--format", choices=("yaml", "python"), default="yaml", help="default: yaml"),
            argument(
                "--winner",
                action="store_true",
                help="write the winner of the search, whatever is recommended",
            ),
            OUTPUT,
        ),
    ),
    "dump": Command(
        "write a study into a file, without secrets, to be kept or loaded elsewhere",
        "tempopt.cli.transfer:dump",
        (
            NAME,
            *STORE,
            argument(
                "-o",
                "--output",
                metavar="FILE",
                help="output file, replaced if it is there (default: NAME.tempopt in the current folder)",
            ),
        ),
    ),
    "load": Command(
        "read a study from a file into a database, where it goes on",
        "tempopt.cli.transfer:load",
        (
            argument("file", metavar="FILE", help="file that tempopt dump has written"),
            argument("--name", metavar="NAME", help="name of the study there (default: the one it has)"),
            *STORE,
        ),
    ),
    "pause": Command(
        "make every agent of a study write checkpoints and leave, until it is resumed",
        "tempopt.cli.lifecycle:pause",
        (NAME, *STORE, *JOBS),
    ),
    "stop": Command(
        "end the search of a study and confirm what was found so far",
        "tempopt.cli.lifecycle:stop",
        (NAME, *STORE),
    ),
    "delete": Command(
        "delete a study with its trials, checkpoints and logs",
        "tempopt.cli.lifecycle:delete",
        (
            NAME,
            *STORE,
            argument("--yes", action="store_true", help="do not ask"),
            argument("--force", action="store_true", help="delete it even while agents work on it"),
            *JOBS,
        ),
    ),
    "gc": Command(
        "remove checkpoints that are no longer needed",
        "tempopt.cli.lifecycle:gc",
        (
            argument("name", metavar="NAME", nargs="?", help="name of a study (default: all in the store)"),
            *STORE,
            argument("--dry-run", action="store_true", help="list them only"),
        ),
    ),
    "storage": Command(
        "migrate a database written by an older version",
        "tempopt.cli.lifecycle:storage",
        (
            argument("action", metavar="upgrade", choices=("upgrade",), help="the only action"),
            *STORE,
        ),
    ),
    "check": Command(
        "check a spec without searching",
        "tempopt.cli.check:check",
        (
            SPEC,
            SET,
            argument(
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
            SPEC,
            *STORE,
            argument(
                "--trials",
                metavar="N",
                type=argument_types.count,
                help="number of search trials (default: the spec's)",
            ),
            WORKERS,
            SET,
            argument(
                "--earlier",
                metavar="NAME",
                help="study in the database whose runs show the noise and the time of a run (default: this "
                "study, or one of study.warm_start)",
            ),
            argument(
                "--run-hours",
                metavar="H",
                type=argument_types.hours,
                help="hours of one run (default: measured, in a study or else in a dry run)",
            ),
            JSON,
        ),
    ),
    "init": Command(
        "write a commented spec for a LightningModule of your own",
        "tempopt.cli.init:init",
        (
            argument(
                "module", metavar="IMPORT_PATH", help="import path, for example my_package.my_module.MyModule"
            ),
            argument(
                "--scenario",
                metavar="NAME",
                choices=tuple(SCENARIOS),
                help=f"write ranges and a first parameter set from published advice: {', '.join(SCENARIOS)}",
            ),
            OUTPUT,
        ),
    ),
    **SERVICE,
}
