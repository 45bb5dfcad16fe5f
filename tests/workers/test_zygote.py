"""The end of a zygote, however often a person asks for it."""

from __future__ import annotations

import subprocess
from unittest.mock import Mock

import pytest

from tempopt.workers.zygote import Zygote


@pytest.mark.parametrize("while_waiting", [KeyboardInterrupt, subprocess.TimeoutExpired("zygote", 10)])
def test_one_that_does_not_end_or_whose_end_is_not_waited_for_is_killed(while_waiting: object) -> None:
    zygote = Zygote.__new__(Zygote)
    zygote._control, zygote._process = Mock(), Mock()
    zygote._process.wait.side_effect = [while_waiting, 0]
    zygote.end()
    zygote._control.close.assert_called_once()
    zygote._process.kill.assert_called_once()
