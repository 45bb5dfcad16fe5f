"""What a node of the fake Kubernetes does: pods as processes, their volumes as folders here."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers import descendants, strike

Plain = dict[str, Any]
REPOSITORY = Path(__file__).resolve().parents[2]
_INHERITED = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(slots=True)
class _Container:
    process: subprocess.Popen[bytes]
    folder: Path
    kill_at: float | None = None


class Kubelet:
    """Runs pods.

    Args:
        folder: For what they write.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "pods"
        self._containers: dict[str, _Container] = {}
        self.environment: dict[str, str] = {}
        """Variables that the image sets."""

    def start(self, pod: Plain, secrets: Mapping[str, Mapping[str, str]]) -> str | None:
        """Start a pod's container; return the name of a Secret that it needs and that is not there yet."""
        folder = self._folder / pod["metadata"]["name"]
        folder.mkdir(parents=True, exist_ok=True)
        (container,) = pod["spec"]["containers"]
        places = {}
        for mount in container["volumeMounts"]:
            (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == mount["name"])
            place = folder / mount["name"]
            place.mkdir(exist_ok=True)
            for source in volume.get("projected", {}).get("sources", []):
                missing = _projected(source["secret"], secrets, place)
                if missing:
                    return missing
            # a claim is a folder that has the same path everywhere
            if "persistentVolumeClaim" not in volume:
                places[mount["mountPath"]] = str(place)
        places[container["terminationMessagePath"]] = str(folder / "said")
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment |= {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **self.environment}
        environment |= {each["name"]: _moved(each["value"], places) for each in container["env"]}
        for each in container.get("envFrom", []):
            environment |= secrets[each["secretRef"]["name"]]
        words = [_moved(word, places) for word in container["command"]]
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable if words[0] == "python" else words[0], *words[1:]],
                cwd=_moved(container["workingDir"], places),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._containers[pod["metadata"]["name"]] = _Container(process, folder)
        pod["status"] |= {
            "phase": "Running",
            "containerStatuses": [{"name": "agent", "state": {"running": {}}}],
        }
        return None

    def look(self, pod: Plain) -> None:
        """Write into a pod's status how its container stands, and kill it if its time to leave is over."""
        container = self._containers[pod["metadata"]["name"]]
        if container.kill_at is not None and time.monotonic() > container.kill_at:
            self.kill(pod)
        code = container.process.poll()
        if code is None:
            return
        said = container.folder / "said"
        text = said.read_text() if said.exists() else ""
        if not text and code:
            # FallbackToLogsOnError
            text = self.log(pod)[-2048:]
        ended = {"exitCode": code if code >= 0 else 128 - code, "message": text}
        ended["reason"] = "Completed" if code == 0 else "Error"
        pod["status"] |= {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "agent", "state": {"terminated": ended}}],
        }

    def end(self, pod: Plain) -> None:
        """Tell a pod to end, and give it its grace; one that has not begun has ended."""
        container = self._containers.get(pod["metadata"]["name"])
        if container is None:
            pod["status"]["phase"] = "Failed"
        elif container.kill_at is None:
            container.kill_at = time.monotonic() + pod["spec"]["terminationGracePeriodSeconds"]
            # to the first process of the container alone
            with contextlib.suppress(ProcessLookupError):
                container.process.send_signal(signal.SIGTERM)

    def kill(self, pod: Plain) -> None:
        """Kill all processes of a pod."""
        pid = self._containers[pod["metadata"]["name"]].process.pid
        for each in [pid, *descendants(pid)]:
            strike(each, signal.SIGKILL)

    def kill_all(self) -> None:
        """Kill what is left, and wait for it."""
        for container in self._containers.values():
            pid = container.process.pid
            if container.process.poll() is None:
                for each in [pid, *descendants(pid)]:
                    strike(each, signal.SIGKILL)
                container.process.wait()

    def log(self, pod: Plain) -> str:
        """Return what a pod has printed."""
        return (self._folder / pod["metadata"]["name"] / "log").read_text(errors="replace")

    def command_lines(self, pod: Plain) -> list[str]:
        """Return the command lines of all processes of a pod."""
        pid = self._containers[pod["metadata"]["name"]].process.pid
        found = []
        for each in [pid, *descendants(pid)]:
            with contextlib.suppress(OSError):
                found.append(Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found


def _projected(source: Plain, secrets: Mapping[str, Mapping[str, str]], place: Path) -> str | None:
    if source["name"] not in secrets:
        return str(source["name"])
    secret = secrets[source["name"]]
    items = source.get("items") or [{"key": key, "path": key} for key in secret]
    for item in items:
        (place / item["path"]).write_text(secret[item["key"]])
    return None


def _moved(word: str, places: Mapping[str, str]) -> str:
    """Return a word with a path of the container replaced by the folder that stands for it."""
    for path, place in places.items():
        if word == path or word.startswith(f"{path}/"):
            return place + word.removeprefix(path)
    return word
