"""What a pod on Kubernetes runs: one agent, until it has ended for good or the pod is told to end.

Owns how a pod's exit code says what is to become of its agent; kubernetes_manifest.py has the cluster go on
by that. Run as ``python -P -m tempopt.launch.kubernetes_pod GIVEN SAID``, with the folder that has what the
agent is to do, and the file for its last words.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
from pathlib import Path

from tempopt.launch.kubernetes_manifest import STORAGE, TASK, TOKEN, TOLD
from tempopt.launch.launcher import PoolWork, Task
from tempopt.launch.supervise import Ended, Supervisor

# The cluster keeps the first 4096 bytes of what a container says; an error is at the end.
_MOST_SAID = 4000


def given(folder: Path) -> Task:
    """Return what the agent of this pod is to do.

    Args:
        folder: Has the task, the database's URL, and for a server the token.
    """
    plain = json.loads((folder / TASK).read_text(encoding="utf-8"))
    plain["storage"] = (folder / STORAGE).read_text(encoding="utf-8").strip()
    plain["program"], plain["options"] = tuple(plain["program"]), tuple(plain["options"])
    if (work := plain["pool"]) is not None:
        token = folder / TOKEN
        work |= {name: tuple(work[name]) for name in ("queues", "labels")}
        plain["pool"] = PoolWork(**{**work, "token_file": str(token) if token.exists() else None})
    task = Task(**plain)
    # without a device plugin's say, a container may see the cards of its node
    cards = {} if task.gpus else {"CUDA_VISIBLE_DEVICES": ""}
    return dataclasses.replace(task, environment={**task.environment, **_path(task), **cards})


def _path(task: Task) -> dict[str, str]:
    """Return where modules are found: the launching machine's folders that are here, then the image's."""
    theirs = task.environment.get("PYTHONPATH")
    if theirs is None:
        return {}
    here = [each for each in theirs.split(os.pathsep) if Path(each).is_dir()]
    return {"PYTHONPATH": os.pathsep.join([*here, *filter(None, [os.environ.get("PYTHONPATH")])])}


def exit_code(ended: Ended, *, told: bool) -> int:
    """Return the exit code of a pod.

    Args:
        ended: How its agent ended.
        told: Whether the pod was told to end.
    """
    if ended.code == 0:
        return 0
    if ended.code == 130 or (told and ended.code < 0):
        # of itself an agent leaves so when its study was paused
        return TOLD if told else 0
    return ended.code if ended.code > 0 else 128 - ended.code


def run(folder: Path, said: Path) -> int:
    """Run the agent of this pod to its end, and return the pod's exit code."""
    supervisor = Supervisor(given(folder))
    told = threading.Event()

    def leave(*_: object) -> None:
        told.set()
        # not here: a handler that waits keeps the agent's output from being passed on
        threading.Thread(target=supervisor.leave, daemon=True).start()

    signal.signal(signal.SIGTERM, leave)
    ended = supervisor.run()
    if ended.message:
        said.write_bytes(ended.message.encode()[-_MOST_SAID:])
    return exit_code(ended, told=told.is_set())


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2])))
