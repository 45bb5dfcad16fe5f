"""The end of a fork server, however often a person asks for it."""

from __future__ import annotations

import subprocess
from unittest.mock import Mock

import pytest

from tempopt.agent.rank_process import ForkServer


@pytest.mark.parametrize("while_waiting", [KeyboardInterrupt, subprocess.TimeoutExpired("fork server", 10)])
def test_one_that_does_not_end_or_whose_end_is_not_waited_for_is_killed(while_waiting: object) -> None:
    fork_server = ForkServer.__new__(ForkServer)
    fork_server._control, fork_server._process = Mock(), Mock()
    fork_server._process.wait.side_effect = [while_waiting, 0]
    fork_server.end()
    fork_server._control.close.assert_called_once()
    fork_server._process.kill.assert_called_once()
