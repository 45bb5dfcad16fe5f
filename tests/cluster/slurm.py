"""A real Slurm on this machine, for tests: munge, controller and a node, in a folder and on ports of its own.

Nothing outside the folder is changed; who uses it has ``SLURM_CONF`` in the environment.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.servers import LOOPBACK, PATIENCE, free_port, strike

NODE = "node"
PARTITION = "tests"
LOW, HIGH = "low", "high"
"""Partitions on the same node: jobs of the second have those of the first queued again."""
CPUS = 8
MEMORY = 16000

# what a card is to Slurm: some device, of which CUDA_VISIBLE_DEVICES then gives the number
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
GPUS = len(_DEVICES)

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

# Every process that the node pretends to have is this machine's: no control groups, no accounting.
_CONFIG = """\
ClusterName=tempopt
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
SlurmctldPort={controller}
SlurmdPort={node_port}
AuthType=auth/munge
# a job that is queued again waits until the credential of its last life has expired: two minutes elsewhere
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
# else a job that does not say takes all that a node has
DefMemPerCPU=1000
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
MpiDefault=none
ReturnToService=2
OverTimeLimit=0
KillWait=5
MinJobAge=300
GresTypes=gpu
# the node has what it says, not what this machine has
SlurmdParameters=config_overrides
NodeName={node} NodeHostname={host} NodeAddr={address} CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName={partition} Nodes={node} Default=YES MaxTime=INFINITE State=UP PreemptMode=OFF
PartitionName={low} Nodes={node} MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName={high} Nodes={node} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def why_not() -> str:
    """Return why no Slurm can be started here, and how to get it; empty if one can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        return (
            f"NOT TESTED on Slurm: {', '.join(missing)} not installed. Install them (on Debian: "
            "apt-get install slurm-wlm munge); the tests start a Slurm of their own."
        )
    if os.geteuid() != 0:
        return "NOT TESTED on Slurm: only root can start one. Run the tests as root."
    return ""


class Slurm:
    """A Slurm with one node, running from when it is made.

    Args:
        parent: Folder in which its own is made: a short path, for there is a socket in it.

    Raises:
        RuntimeError: It does not start; with what its daemons said.
    """

    def __init__(self, parent: str = "/tmp") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tempopt-slurm-", dir=parent))
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        atexit.register(self.stop)
        try:
            self._configure()
            self._start("munged", "--foreground", "--force", *self._munge_files())
            self._wait_until(lambda: (self.folder / "munge.socket").exists(), "munged")
            self._start("slurmctld", "-D")
            self.start_node()
        except BaseException:
            self.stop()
            raise

    def _configure(self) -> None:
        # munge requires that every user may reach its socket and no user its key
        self.folder.chmod(0o755)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.touch(0o400)
        key.write_bytes(secrets.token_bytes(128))
        config = _CONFIG.format(
            folder=self.folder,
            host=socket.gethostname().partition(".")[0],
            address=LOOPBACK,
            controller=free_port(),
            node_port=free_port(),
            node=NODE,
            partition=PARTITION,
            low=LOW,
            high=HIGH,
            cpus=CPUS,
            memory=MEMORY,
            gpus=GPUS,
        )
        (self.folder / "slurm.conf").write_text(config)
        lines = [f"NodeName={NODE} Name=gpu File={device}\n" for device in _DEVICES]
        (self.folder / "gres.conf").write_text("".join(lines))

    def _munge_files(self) -> list[str]:
        options = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        return [f"--{option}={self.folder}/munge.{option.partition('-')[0]}" for option in options]

    def _start(self, program: str, *options: str) -> None:
        path = shutil.which(program, path=_PATH)
        assert path is not None
        with (self.folder / f"{program}.out").open("ab") as output:
            self._daemons[program] = subprocess.Popen(
                [path, *options],
                cwd=self.folder,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C in the terminal is for the tests, which then end their servers
                start_new_session=True,
            )

    def start_node(self) -> None:
        """Start the node's daemon, and wait until work can be given to it."""
        self._start("slurmd", "-D", "-N", NODE)
        self._wait_until(self._is_up, "slurmd")

    def _is_up(self) -> bool:
        states = self.command("sinfo", "-h", f"--partition={PARTITION}", "--format=%t", check=False)
        # a job that waited for the node may have it already
        return states.strip() in ("idle", "mix", "alloc")

    def forget(self) -> None:
        """Start the controller again with no memory of any job."""
        controller = self._daemons.pop("slurmctld")
        # asked to end, it may wait for itself; there is nothing that it has to save
        controller.kill()
        controller.wait()
        self._start("slurmctld", "-D", "-c")
        self._wait_until(self._is_up, "slurmctld")

    def kill_node(self) -> None:
        """End the node's daemon and all that runs on it at once, as a power cut would."""
        node = self._daemons.pop("slurmd")
        daemon_pids = {daemon.pid for daemon in self._daemons.values()}
        # all are frozen before the first is ended: none may live to report another's death
        frozen: set[int] = set()
        while running_pids := set(self.processes()) - daemon_pids - frozen:
            for pid in running_pids:
                strike(pid, signal.SIGSTOP)
            frozen |= running_pids
        for pid in frozen:
            strike(pid, signal.SIGKILL)
        node.wait()

    def _wait_until(self, condition: Callable[[], bool], description: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline or any(
                daemon.poll() is not None for daemon in self._daemons.values()
            ):
                raise RuntimeError(f"{description} does not come up.\n{self.log_text()}")
            time.sleep(0.1)

    def log_text(self) -> str:
        """Return the end of what the daemons wrote."""
        logs = sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")])
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def command(self, *words: str, check: bool = True) -> str:
        """Carry out one of Slurm's commands and return what it printed.

        Raises:
            RuntimeError: It failed and ``check`` is given.
        """
        process = subprocess.run(
            words, env={**os.environ, **self.environment}, capture_output=True, text=True, cwd=self.folder
        )
        if check and process.returncode != 0:
            raise RuntimeError(f"{' '.join(words)} failed: {process.stdout}{process.stderr}")
        return process.stdout

    def processes(self) -> list[int]:
        """Return the processes that use this Slurm: its daemons and all that its jobs started."""
        mark = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()
        pids = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in environ.read_bytes().split(b"\0"):
                    pids.append(int(environ.parent.name))
        return [pid for pid in pids if pid != os.getpid()]

    def clear(self) -> None:
        """Cancel every job, wait until nothing runs, and give back a node that was lost."""
        for partition in (PARTITION, LOW, HIGH):
            self.command("scancel", "--full", "--signal=KILL", f"--partition={partition}", check=False)
            self.command("scancel", f"--partition={partition}", check=False)
        self._wait_until(lambda: not self.command("squeue", "-h"), "the end of all jobs")
        if "slurmd" not in self._daemons:
            self.start_node()

    def stop(self) -> None:
        """End the daemons and whatever still runs, and delete the folder."""
        atexit.unregister(self.stop)
        for pid in (*self.processes(), *(daemon.pid for daemon in self._daemons.values())):
            strike(pid, signal.SIGKILL)
        for daemon in self._daemons.values():
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
