"""The worker process of commands and functions: takes requests from an agent, one after another.

Started by tempopt.agent.rank_process as ``python -m tempopt.program.worker FD``. It loads neither torch nor
Lightning, unless a function of the user does.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from tempopt.class_loading import find_modules_in
from tempopt.program.command_run import CommandRun
from tempopt.program.function_run import FunctionRun
from tempopt.program.process_tree import kill_descendants
from tempopt.program.program_run import ProgramRun
from tempopt.spec.program import CommandProgram
from tempopt.training.messages import Channel, Failed, Finished, ProgramRequest, Ready
from tempopt.training.output import Output
from tempopt.training.worker import AgentChannel, build_failed_message


def make_run(request: ProgramRequest, channel: Channel) -> ProgramRun:
    """Return the run of a request.

    Raises:
        SpecError: Its function cannot be imported.
    """
    program = request.program
    if isinstance(program, CommandProgram):
        return CommandRun(request, program, channel)
    return FunctionRun(request, program, channel)


def _carry_out(request: ProgramRequest, channel: Channel) -> Finished | Failed:
    try:
        return make_run(request, channel).carry_out()
    except BaseException as error:
        traceback.print_exc()
        message = build_failed_message(request, error)
        return dataclasses.replace(message, is_by_program=message.kind == "error")


def main(descriptor: int) -> None:
    """Serve requests until the agent goes away.

    Args:
        descriptor: The line to the agent.
    """
    find_modules_in(str(Path.cwd()))
    for number in (signal.SIGINT, signal.SIGTERM):
        # a whole process group gets these, and what becomes of the run is the agent's to decide; signals that
        # are ignored would be ignored by commands, too
        signal.signal(number, lambda *_: None)
    connection = Connection(descriptor)
    # a process that a function starts, and that outlives this one, would else keep the line open
    os.register_at_fork(after_in_child=connection.close)
    channel = AgentChannel(connection, on_end=lambda: kill_descendants(os.getpid()))
    output = Output()
    channel.send(Ready())
    while True:
        request = channel.requests.get()
        assert isinstance(request, ProgramRequest), "a LightningModule was given to a worker of programs"
        output.to(request.folder)
        answer = _carry_out(request, channel)
        if answer.log_lost is None:
            answer = dataclasses.replace(answer, log_lost=output.lost)
        if "torch" in sys.modules:
            from tempopt.training.gpu_memory import release

            release()
        channel.send(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
