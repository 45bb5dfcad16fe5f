"""The command line: parse the arguments, run a command, and return its exit code.

``commands`` has the names and options. The module of a command is imported when it is called, so that help is
quick.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from tempopt.cli.commands import COMMANDS as COMMANDS
from tempopt.cli.commands import Command as Command
from tempopt.errors import (
    ScheduleNotImported,
    TempoptError,
    UsageError,
    escape_control_chars,
    mask_secrets,
    not_text,
    unknown,
)

SHELLS = ("bash", "zsh", "fish", "tcsh")

EXIT_OK = 0
EXIT_FAILED = 1
USAGE_EXIT_CODE = 2
EXIT_NO_DIFFERENCE = 3
EXIT_WORSE = 4
EXIT_INTERRUPTED = 130

OUTCOME_CODES = {"better": EXIT_OK, "not_shown": EXIT_NO_DIFFERENCE, "worse": EXIT_WORSE}
"""Exit code of a comparison with each outcome."""

_EPILOG = """\
environment:
  TEMPOPT_STORAGE      URL of a database or server that --storage defaults to (else the server that
                       `tempopt login` was given, else sqlite:///tempopt.db)
  TEMPOPT_TOKEN, TEMPOPT_TOKEN_FILE
                       token for a server, or the file that holds it (else what `tempopt login` has kept)
  TEMPOPT_TRACEBACK=1  show the traceback behind an error message

exit codes: 0 done, 1 the study failed, 2 usage or spec error, 130 interrupted or paused (state saved)
            of `tempopt compare` and `tempopt judge`, and of `tempopt resume` of a comparison: 0 a variant
            is better, 3 no difference is shown, 4 no variant is better and one is worse
"""


_SPACED_URL = re.compile(r"://[^@/]{0,1000}:[^@]*\s.*@", re.DOTALL)


class _Parser(argparse.ArgumentParser):
    """An argparse parser that raises its errors, so that all errors are printed in the same form."""

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
    parser.add_argument(
        "--import",
        metavar="MODULE",
        help="import a module before the command, such as one with a schedule of your own, which show, "
        "report and dashboard do not import by themselves",
    )
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=SHELLS,
        help=f"print the script that completes commands and options in a shell: {', '.join(SHELLS)}",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(
            name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            allow_abbrev=False,
        )
        for argument in command.arguments:
            subparser.add_argument(*argument.names, **argument.settings)
    return parser, commands.choices


def _refuse_invalid_text(argv: Sequence[str]) -> None:
    for word in argv:
        if text_fault := not_text(word):
            escaped_word = word.encode("unicode_escape").decode("ascii")
            raise UsageError(f'An argument contains {text_fault}: "{escaped_word}". Give text in UTF-8.')


def _refuse_unknown(argv: Sequence[str]) -> None:
    """Raise UsageError for the first unknown command or option, with the nearest match."""
    if any(_SPACED_URL.search(word) for word in argv):
        raise UsageError("A URL was given with a space in its user name or password. Write it %20.")
    if not argv or argv[0].startswith("-"):
        words, where, options = argv[:1], "option", ["--version", "--import", "--print-completion"]
    elif argv[0] not in COMMANDS:
        raise UsageError(unknown("command", argv[0], COMMANDS))
    else:
        words, where = argv[1:], f"option of tempopt {argv[0]}"
        names = [name for argument in COMMANDS[argv[0]].arguments for name in argument.names]
        options = [name for name in names if name.startswith("-")]
    for word in words:
        if word == "--":
            return
        is_option = word.startswith("-") and word != "-" and not word[1:2].isdigit()
        option = word.partition("=")[0] if word.startswith("--") else word[:2]
        if is_option and option not in (*options, "-h", "--help"):
            raise UsageError(unknown(where, option, [*options, "--help"]))


def _import_modules(argv: Sequence[str]) -> list[str]:
    """Import the modules of ``--import`` before the command, and return the remaining words."""
    words = list(argv)
    while words and words[0].partition("=")[0] == "--import":
        name = words.pop(0).partition("=")[2] or (words.pop(0) if words else "")
        if not name or name.startswith("-") or name.endswith(".py"):
            raise UsageError("--import needs the name of a module, as in tempopt --import my_schedules show.")
        from tempopt.class_loading import import_module as import_given

        import_given(name, where="--import")
    return words


def _run(argv: Sequence[str]) -> int:
    """Run a command and return its exit code, 0 if it returns None."""
    _refuse_invalid_text(argv)
    argv = _import_modules(argv)
    _refuse_unknown(argv)
    parser, commands = build_parsers()
    if not argv or argv[0] not in commands:
        options = parser.parse_args(argv)
        if options.print_completion is not None:
            import shtab  # lazy import, so that help is quick

            print(shtab.complete(parser, options.print_completion))
            return EXIT_OK
        if options.version:
            from tempopt.version import __version__

            print(f"tempopt {__version__}")
            return EXIT_OK
        parser.print_help(sys.stderr)
        return USAGE_EXIT_CODE
    # intermixed, to allow `logs NAME --storage URL TICKET`
    arguments = commands[argv[0]].parse_intermixed_args(argv[1:])
    if "storage" in arguments:
        from tempopt.cli.storage import check_option_needs_database, storage_url

        arguments.url = storage_url(arguments)
        check_option_needs_database(argv[0], arguments)
    module, _, function = COMMANDS[argv[0]].run.partition(":")
    try:
        code: int | None = getattr(import_module(module), function)(arguments)
    except TempoptError as error:
        if getattr(arguments, "json", False):
            print(json.dumps({"error": mask_secrets(str(error))}, indent=2))
        if isinstance(error, ScheduleNotImported):
            raise ScheduleNotImported(str(error).replace("COMMAND", shlex.join(argv))) from error
        raise
    sys.stdout.flush()
    return code or EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code.

    Args:
        argv: The words after the program's name; None: those of the process.
    """
    return exit_code(lambda: _run(sys.argv[1:] if argv is None else argv))


def program() -> int:
    """Run one command as the program of this process, and return its exit code.

    Afterwards SIGINT is ignored, so that Ctrl-C during the shutdown of the interpreter does not change the
    exit code.
    """
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def exit_code(work: Callable[[], int]) -> int:
    """Call a function, print the message of an error, and return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        # Characters that the output cannot encode must not end a search.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return work()
    except TempoptError as error:
        if os.environ.get("TEMPOPT_TRACEBACK"):
            _print_traceback()
        print(escape_control_chars(mask_secrets(f"tempopt: error: {error}")), file=sys.stderr)
        return USAGE_EXIT_CODE if isinstance(error, UsageError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, as in `tempopt list | head`.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception as error:
        _print_traceback()
        description = mask_secrets(f"{type(error).__name__}: {error}")
        print(
            f"tempopt: error: {description}\nThis was not foreseen. If it is not yours to put right, please "
            "report it with the lines above.",
            file=sys.stderr,
        )
        return EXIT_FAILED


def _print_traceback() -> None:
    import traceback  # lazy import, so that help is quick

    print(mask_secrets(traceback.format_exc()), file=sys.stderr)
