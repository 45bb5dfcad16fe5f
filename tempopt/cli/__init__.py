"""The command line: what can be typed, and how its end is told.

Owns names, flags and exit codes. A command's own module is imported when it is called, so that help is quick.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from tempopt.errors import TempoptError, UsageError, unknown

DEFAULT_STORAGE = "sqlite:///tempopt.db"

DONE = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130

_EPILOG = """\
environment:
  TEMPOPT_STORAGE      database URL that --storage defaults to (else sqlite:///tempopt.db)
  TEMPOPT_TRACEBACK=1  show the traceback behind an error message

exit codes: 0 done, 1 the study failed, 2 usage or spec error, 130 interrupted or paused (state saved)
"""


# From a colon to the last "@" before a space, so that a password with a ":" or an "@" that was not written
# %3A or %40 is hidden whole. The example in a message is none.
_USERINFO = re.compile(r":(?!//)(?!password@host/)\S+@")
_SPACED_URL = re.compile(r"://[^@/]*:[^@]*\s.*@", re.DOTALL)
_SECRET_QUERY = re.compile(r"([?&][^\s=&]*(?:pass|pwd|secret|token)[^\s=&]*=)[^\s&]*", re.IGNORECASE)


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


class Trials(NamedTuple):
    """How many search trials were asked for: ``whole`` in all (None: as the spec says), or ``more``."""

    whole: int | None = None
    more: int = 0


def _count(text: str) -> int:
    """Return a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of 1 or more')
    return int(text)


def _option(text: str) -> tuple[str, str]:
    """Return the name and the value of what ``KEY=VALUE`` says."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f'"{text}" is not KEY=VALUE, as in partition=gpu')
    return key, value


def _workers(text: str) -> int | str:
    """Return a positive integer, or ``auto``."""
    try:
        return text if text == "auto" else _count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from None


def _trials(text: str) -> Trials:
    """Return what ``N`` or ``+N`` asks for."""
    if text.startswith("+"):
        return Trials(more=_count(text[1:]))
    return Trials(whole=_count(text))


def _more_trials(text: str) -> Trials:
    """Return what ``+N`` asks for."""
    if not text.startswith("+"):
        raise argparse.ArgumentTypeError(f'"{text}" is not +N: a study that goes on can only get more trials')
    return _trials(text)


_SPEC = _argument("spec", metavar="SPEC", help="study spec: a YAML file, or the name of a bundled study")
_NAME = _argument("name", metavar="NAME", help="name of a study in the store")
_STORE = (
    _argument(
        "--storage", metavar="URL", help="database URL (default: TEMPOPT_STORAGE, else sqlite:///tempopt.db)"
    ),
    _argument(
        "--storage-file",
        metavar="FILE",
        help="file whose only line is the database URL, to keep a password out of lists of processes",
    ),
)
_WORKERS = _argument(
    "--workers",
    metavar="N",
    type=_workers,
    help="trials side by side; auto: as many as there is room for (default: the spec's, else auto)",
)
_LAUNCH = (
    _argument(
        "--launcher",
        metavar="NAME",
        help="what starts the agents: local, ray, slurm, or package.module:Class (default: none; this "
        "command is itself the one agent)",
    ),
    _argument(
        "--launch",
        metavar="KEY=VALUE",
        type=_option,
        action="append",
        default=[],
        help="an option of the launcher, as in partition=gpu; may be given more than once",
    ),
    _argument("--address", metavar="URL", help="where the cluster is; short for --launch address=URL"),
    _argument(
        "--detach",
        action="store_true",
        help="start the agents and return; the study goes on, and `tempopt show` sees it",
    ),
)
_CHECKPOINTS = _argument(
    "--checkpoints",
    metavar="URL",
    help="where runs keep checkpoints: a folder, or a URL as in s3://bucket/folder (default: the study's, "
    "else tempopt-runs)",
)
_SET = _argument(
    "--set",
    metavar="KEY=VALUE",
    action="append",
    default=[],
    help="set a key of the spec, as in data.root=/data or study.seed=1; may be given more than once",
)
_OUTPUT = _argument("-o", "--output", metavar="FILE", help="file to write to (default: the screen)")
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
                type=_trials,
                default=Trials(),
                help="search trials (default: the spec's); +N: so many more than the study has",
            ),
            _argument("--enqueue", metavar="FILE", help="YAML list of parameter sets to try first"),
            _WORKERS,
            _SET,
            _argument("--name", metavar="NAME", help="name of the study (default: the spec's)"),
            _CHECKPOINTS,
            *_LAUNCH,
        ),
    ),
    "resume": Command(
        "go on with a study, from the database alone",
        "tempopt.cli.search:resume",
        (
            _NAME,
            *_STORE,
            _argument(
                "--trials",
                metavar="+N",
                type=_more_trials,
                default=Trials(),
                help="so many more search trials than the study has",
            ),
            _WORKERS,
            _CHECKPOINTS,
            *_LAUNCH,
        ),
    ),
    "agent": Command(
        "join a running study with one more agent, from any machine",
        "tempopt.cli.search:agent",
        (_NAME, *_STORE, _WORKERS, _CHECKPOINTS),
    ),
    "list": Command("list the studies in the store", "tempopt.cli.show:list_studies", (*_STORE, _JSON)),
    "show": Command("show what a study found so far", "tempopt.cli.show:show", (_NAME, *_STORE, _JSON)),
    "logs": Command(
        "show what the runs of a study printed",
        "tempopt.cli.logs:logs",
        (
            _NAME,
            _argument(
                "ticket",
                metavar="TICKET",
                nargs="*",
                default=[],
                help="the run, as in search-12 (default: a line for each run)",
            ),
            _argument("--attempt", metavar="N", type=_count, help="of this attempt alone"),
            *_STORE,
        ),
    ),
    "export": Command(
        "write the winner as YAML for LightningCLI or as a Python call",
        "tempopt.cli.show:export",
        (
            _NAME,
            *_STORE,
            _argument("--format", choices=("yaml", "python"), default="yaml", help="default: yaml"),
            _OUTPUT,
        ),
    ),
    "pause": Command(
        "have every agent of a study checkpoint and leave, until it is resumed",
        "tempopt.cli.care:pause",
        (_NAME, *_STORE),
    ),
    "stop": Command(
        "end the searching of a study; what was found so far is confirmed",
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
            _argument("--force", action="store_true", help="even while agents are at work on it"),
        ),
    ),
    "gc": Command(
        "remove the checkpoints that no run needs any more",
        "tempopt.cli.care:gc",
        (
            _argument("name", metavar="NAME", nargs="?", help="name of a study (default: all in the store)"),
            *_STORE,
            _argument("--dry-run", action="store_true", help="only list them"),
        ),
    ),
    "storage": Command(
        "bring a database that an older tempopt wrote to this version",
        "tempopt.cli.care:storage",
        (
            _argument("action", metavar="upgrade", choices=("upgrade",), help="the only thing to do with it"),
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
                help="also train two steps and name the attention layers that would be tempered",
            ),
        ),
    ),
    "init": Command(
        "write a commented spec for a LightningModule of your own",
        "tempopt.cli.check:init",
        (
            _argument(
                "module", metavar="IMPORT_PATH", help="where it is, as in my_package.my_module.MyModule"
            ),
            _OUTPUT,
        ),
    ),
}


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are raised, so that every error of the program looks the same."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. See `{self.prog} --help`.")


def build_parsers() -> tuple[_Parser, dict[str, _Parser]]:
    """Return the parser of the program, and that of each command."""
    parser = _Parser(
        prog="tempopt",
        description="Finds the attention temperature schedule a model should have been trained with.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        own = commands.add_parser(
            name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            allow_abbrev=False,
        )
        for argument in command.arguments:
            own.add_argument(*argument.names, **argument.settings)
    return parser, commands.choices


def _refuse_unknown(argv: Sequence[str]) -> None:
    """Raise UsageError at the first command or option that there is not, naming the nearest there is."""
    if any(_SPACED_URL.search(word) for word in argv):
        raise UsageError("A URL was given with a space in its user name or password. Write it %20.")
    if not argv or argv[0].startswith("-"):
        own, where, known = argv[:1], "option", ["--version"]
    elif argv[0] not in COMMANDS:
        raise UsageError(unknown("command", argv[0], COMMANDS))
    else:
        own, where = argv[1:], f"option of tempopt {argv[0]}"
        names = [name for argument in COMMANDS[argv[0]].arguments for name in argument.names]
        known = [name for name in names if name.startswith("-")]
    for word in own:
        if word == "--":
            return
        is_option = word.startswith("-") and not word[1:2].isdigit()
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        if is_option and option not in (*known, "-h", "--help"):
            raise UsageError(unknown(where, option, [*known, "--help"]))


def _refuse_no_folder() -> None:
    from pathlib import Path

    try:
        Path.cwd()
    except FileNotFoundError:
        raise UsageError("The current folder has been removed. Go to one that exists.") from None


def _run(argv: Sequence[str]) -> int:
    _refuse_unknown(argv)
    parser, commands = build_parsers()
    if not argv or argv[0] not in commands:
        if parser.parse_args(argv).version:
            from tempopt import __version__

            print(f"tempopt {__version__}")
            return DONE
        parser.print_help(sys.stderr)
        return USAGE
    # intermixed: `logs NAME --storage URL TICKET` is what people type as well
    arguments = commands[argv[0]].parse_intermixed_args(argv[1:])
    _refuse_no_folder()
    if "storage" in arguments:
        from tempopt.cli.storage import storage_url

        arguments.url = storage_url(arguments)
    module, _, function = COMMANDS[argv[0]].run.partition(":")
    code: int = getattr(import_module(module), function)(arguments)
    sys.stdout.flush()
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit code.

    Args:
        argv: The words after the program's name; those it was started with if None.
    """
    return exit_code(lambda: _run(sys.argv[1:] if argv is None else argv))


def exit_code(work: Callable[[], int]) -> int:
    """Return the exit code of what a command does, and print the message if it raises."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal or a pipe that cannot show a letter is no reason to end a search.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return work()
    except TempoptError as error:
        if os.environ.get("TEMPOPT_TRACEBACK"):
            _print_traceback()
        print(_masked(f"tempopt: error: {error}"), file=sys.stderr)
        return USAGE if isinstance(error, UsageError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read the output had enough of it, as in `tempopt list | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        _print_traceback()
        what = _masked(f"{type(error).__name__}: {error}")
        print(
            f"tempopt: error: {what}\nThis was not foreseen. If it is not yours to put right, please "
            "report it with the lines above.",
            file=sys.stderr,
        )
        return FAILED


def _print_traceback() -> None:
    import traceback  # only where there is one to print: help is quick

    print(_masked(traceback.format_exc()), file=sys.stderr)


def _masked(text: str) -> str:
    """Return a text without passwords: the words of the command line are repeated in messages."""
    return _SECRET_QUERY.sub(r"\1***", _USERINFO.sub(":***@", text))
