"""``tempopt completion`` and ``tempopt help``: what a shell offers while a command is typed, and the help.

Imports nothing but the table of commands, since a shell asks at every Tab.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from tempopt.cli import DEFAULT_STORAGE, DONE, build_parsers
from tempopt.cli.commands import COMMANDS, Argument
from tempopt.errors import UsageError, unknown
from tempopt.spec.catalog import bundled, specs_in

# The words up to the cursor go to `tempopt completion SHELL -- ...`. Where nothing fits, files are offered.
_SCRIPTS = {
    "bash": """\
_tempopt() {
    local IFS=$'\\n' line=${COMP_LINE:0:COMP_POINT} words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    COMPREPLY=($(tempopt completion bash -- "${words[@]}" 2>/dev/null))
}
complete -o default -F _tempopt tempopt
""",
    "zsh": """\
#compdef tempopt
_tempopt() {
    local -a found
    found=("${(@f)$(tempopt completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
if [[ "${funcstack[1]}" = _tempopt ]]; then _tempopt; else compdef _tempopt tempopt; fi
""",
    "fish": """\
function __tempopt
    set -l words (commandline -opc)[2..] (commandline -ct)
    tempopt completion fish -- $words 2>/dev/null
end
complete -c tempopt -a '(__tempopt)'
""",
}


def completion(arguments: argparse.Namespace) -> int:
    """Print the script that a shell loads, or what may be in place of the last of the words."""
    if not arguments.words:
        print(_SCRIPTS[arguments.shell], end="")
    for each in candidates(arguments.words):
        print(each)
    return DONE


def show_help(arguments: argparse.Namespace) -> int:
    """Print the help of a command, or of the program."""
    parser, commands = build_parsers()
    if arguments.about is None:
        print(parser.format_help(), end="")
        return DONE
    if arguments.about not in commands:
        raise UsageError(unknown("command", arguments.about, COMMANDS))
    print(commands[arguments.about].format_help(), end="")
    return DONE


def candidates(words: Sequence[str]) -> list[str]:
    """Return what may be in place of the last word; empty where that is a file or anything else.

    Args:
        words: The words after ``tempopt`` up to the cursor, the last of them perhaps empty.
    """
    if not words:
        return []
    *before, begun = words
    if not before:
        found = [*COMMANDS, "--help", "--version", "--import"]
    elif before[0] not in COMMANDS:
        return []
    else:
        found = _of_command(before, begun)
    return [each for each in found if each.startswith(begun)]


def _of_command(before: Sequence[str], begun: str) -> list[str]:
    arguments = COMMANDS[before[0]].arguments
    options = {name: each for each in arguments for name in each.names if name.startswith("-")}
    last = options.get(before[-1])
    if (last is not None and "action" not in last.settings) or (last and last.settings["action"] == "append"):
        return _values(last, before)
    if begun.startswith("-"):
        return [*options, "--help"]
    positional = [each for each in arguments if not each.names[0].startswith("-")]
    # what an option takes is counted for a position, too; then nothing is offered rather than the wrong thing
    given = [word for word in before[1:] if not word.startswith("-")]
    given = given[sum(word in options and _takes(options[word]) for word in before) :]
    return _values(positional[len(given)], before) if len(given) < len(positional) else []


def _takes(argument: Argument) -> bool:
    return argument.settings.get("action") in (None, "append")


def _values(argument: Argument, before: Sequence[str]) -> list[str]:
    """Return the values of an argument that can be listed."""
    if "choices" in argument.settings:
        return list(argument.settings["choices"])
    match argument.settings.get("metavar"):
        case "COMMAND":
            return list(COMMANDS)
        case "SPEC":
            return [*bundled(), *(path.name for path in specs_in(Path.cwd()))]
        case "NAME" if argument.names[0] in ("name", "--earlier") and before[0] not in ("search", "compare"):
            return _studies(before)
    return []


def _studies(before: Sequence[str]) -> list[str]:
    """Return the names of the studies in an SQLite file; a server could let the shell wait."""
    given = next((after for word, after in pairwise(before) if word == "--storage"), None)
    url = given or os.environ.get("TEMPOPT_STORAGE") or DEFAULT_STORAGE
    path = Path(url.removeprefix("sqlite:///"))
    if "://" in str(path) or "--storage-file" in before or not path.is_file():
        return []
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=0.2)
        ) as connection:
            return [name for (name,) in connection.execute("SELECT name FROM tempopt_study ORDER BY name")]
    except sqlite3.Error:
        return []
