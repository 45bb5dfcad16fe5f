"""Agents as jobs of a Slurm cluster, submitted through submitit from a host that has Slurm's commands.

Each agent is a job with one task on one node; agents of the same size form a job array. slurm_entrypoint.py
runs on the node.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from tempopt.agent.machine import Machine
from tempopt.errors import UsageError, unknown
from tempopt.files import absolute
from tempopt.launch import slurm_entrypoint
from tempopt.launch.launcher import Job, Launcher, Task
from tempopt.launch.supervise import ExitInfo

_COMMANDS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
_WAITING_STATES = frozenset(
    {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
_RUNNING_STATES = frozenset(
    {"CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
)
_UNUSABLE_STATES = ("down", "drain", "fail", "error", "unknown", "future", "inval", "maint")
# Options of sbatch that the launcher sets itself.
_RESERVED_OPTIONS = frozenset(
    "array error export job-name nodes ntasks ntasks-per-node open-mode output requeue "
    "no-requeue signal time".split()
)
_DEFAULT_MINUTES = 60
_LEAVE_SECONDS = 60.0
_SIGNAL_INTERVAL_SECONDS = 10.0
_CANCEL_TIMEOUT_SECONDS = 900.0
_RETRY_PAUSE_SECONDS = (1.0, 3.0, 6.0)
# Ids come from the database: this pattern excludes paths, and the job's name the jobs of other programs.
_ID = re.compile(r"[0-9]+(?:_[0-9]+)?")
_JOB_NAME = "tempopt-"

# Slurm itself requeues a job whose node failed. If only the job's processes died, this script does, at most
# five times if they die at once. The last member of an array has the array's own number, hence both numbers.
_REQUEUE_SCRIPT = """\
code=$?
if [ $code -gt 128 ] && { [ $SECONDS -ge 60 ] || [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ]; }; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}"
fi
exit $code"""


@dataclass(frozen=True, slots=True)
class _AgentSize:
    """The resources that all agents of one job array share."""

    cpus: int
    gpus: int
    memory: int | None
    grace: float
    storage: str


class _SlurmUnavailableError(UsageError):
    """Slurm's controller does not answer."""


class SlurmLauncher(Launcher):
    """Starts agents as Slurm jobs that leave before their time limit and requeue themselves.

    The folder is private to the user, and all nodes have to share it. It gets the output and the ends of
    agents, but no password: the database's URL is passed in the environment, which Slurm stores.

    Args:
        options: See ``OPTIONS``.

    Raises:
        UsageError: Slurm's commands are not on this machine, or an option is invalid.
    """

    name: ClassVar[str] = "slurm"
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "partition": "partition, or several with commas; default: the cluster's",
        "time": "time limit of a job, in minutes or as [DAYS-]HH:MM:SS; a job that reaches it is requeued; "
        f"default: {_DEFAULT_MINUTES}",
        "signal": "seconds before the limit at which an agent has to write checkpoints; Slurm may send "
        "the signal a minute earlier; at most half of the time; default: resources.grace and a minute",
        "account": "account that is charged; default: yours",
        "qos": "quality of service; default: the cluster's",
        "constraint": "features that nodes must have; default: none",
        "setup": "shell command that runs before each agent, as in 'source env.sh && module load cuda'; "
        "default: none",
        "folder": "folder for the output of jobs, which all nodes share; default: tempopt-slurm",
        "parallel": "maximal number of jobs of an array that run at a time; default: all",
        "extra": "further options of sbatch, as in 'reservation=mine;exclude=node[1-3];exclusive'; "
        "default: none",
    }
    is_multi_host = True
    survives_command = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        missing = [command for command in _COMMANDS if shutil.which(command) is None]
        if missing:
            raise UsageError(
                f"The launcher slurm needs Slurm's commands, and {', '.join(missing)} cannot be found. Run "
                "tempopt where jobs are submitted: on the cluster's login node."
            )
        # absolute, so that a program that is started in another folder finds it
        self._folder = absolute(self.options.get("folder", "tempopt-slurm"), "--launch folder:")
        self.options["folder"] = str(self._folder)
        self._minutes = _parse_minutes(self.options.get("time", str(_DEFAULT_MINUTES)))
        self._signal = self._parse_count("signal")
        self._parallel = self._parse_count("parallel")
        self._extra = _parse_extra_options(self.options.get("extra", ""))
        self._job_cache: dict[str, Job] = {}

    def _parse_count(self, name: str) -> int | None:
        text = self.options.get(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"--launch {name}={text}: give a whole number of at least 1.")
        return int(text)

    def machines(self) -> list[Machine]:
        """Return the partition's nodes with all their resources, free or not.

        Nodes that ``constraint`` and ``extra`` exclude are included: agents wait for the others.
        """
        lines = _run_slurm_command("sinfo", "--noheader", "--Node", "--format=%N|%P|%T|%c|%m|%G").splitlines()
        rows = [line.split("|") for line in lines]
        partitions = {row[1].rstrip("*"): row[1].endswith("*") for row in rows}
        partition_option = self.options.get("partition")
        partition_names = (
            set(partition_option.split(","))
            if partition_option
            else {name for name, default in partitions.items() if default}
        )
        for name in sorted(partition_names - partitions.keys()):
            raise UsageError(unknown("Slurm partition", name, partitions))
        nodes = {}
        for name, partition, state, cpus, memory, gres in rows:
            # without a default partition, sbatch itself reports that one is needed
            usable = not state.startswith(_UNUSABLE_STATES) and not state.endswith("*")
            if usable and (not partition_names or partition.rstrip("*") in partition_names):
                nodes[name] = Machine(
                    cores=int(cpus),
                    memory=int(memory.rstrip("+")) * 2**20,
                    cards=tuple(map(str, range(_count_gpus(gres)))),
                )
        return list(nodes.values())

    def start(self, tasks: Sequence[Task]) -> list[str]:
        """Submit an array of jobs for each size of agents.

        Raises:
            UsageError: The folder cannot be made, or Slurm refuses the jobs, which are then all cancelled.
        """
        self._check_times(tasks)
        sizes = [_AgentSize(task.cpus, task.gpus, task.memory, task.grace, task.storage) for task in tasks]
        ids: dict[int, str] = {}
        folder = self._make_folder(tasks)
        try:
            for size in dict.fromkeys(sizes):
                members = [index for index, task_size in enumerate(sizes) if task_size == size]
                jobs = self._submit(folder, size, [tasks[index] for index in members])
                ids.update(zip(members, jobs, strict=True))
        except (FailedJobError, FailedSubmissionError) as error:
            self.cancel(list(ids.values()))
            shutil.rmtree(folder)
            raise UsageError(f"Slurm does not accept the job:\n{str(error).strip()}") from None
        return [ids[index] for index in range(len(tasks))]

    def _leave_delay_seconds(self, grace: float) -> int:
        """Return how many seconds before the limit an agent gets the signal to leave."""
        return self._signal or math.ceil(grace + _LEAVE_SECONDS)

    def _check_times(self, tasks: Sequence[Task]) -> None:
        delay = max(self._leave_delay_seconds(task.grace) for task in tasks)
        if 2 * delay > 60 * self._minutes:
            raise UsageError(
                f"Jobs of {self._minutes} min whose agents have to leave {delay} s before the end have "
                "no time to train. Set --launch time=MINUTES to at least twice --launch signal=SECONDS."
            )

    def _make_folder(self, tasks: Sequence[Task]) -> Path:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # private to this user, regardless of the umask
            return Path(tempfile.mkdtemp(prefix=f"{tasks[0].study}-", dir=self._folder))
        except OSError as error:
            raise UsageError(
                f"The folder {self._folder} for output of Slurm jobs cannot be written: {error.strerror}. "
                "Give a folder that all nodes share: --launch folder=PATH"
            ) from error

    def _submit(self, folder: Path, size: _AgentSize, tasks: Sequence[Task]) -> list[str]:
        executor = submitit.SlurmExecutor(folder=folder)
        executor.update_parameters(**self._build_parameters(size, tasks))
        with _sbatch_environment(size.storage):
            jobs = executor.map_array(
                slurm_entrypoint.run_agent, [replace(task, storage="") for task in tasks]
            )
        # Slurm has a copy of the script
        for script in (*folder.glob(".submission_file_*.sh"), *folder.glob("*_submission.sh")):
            script.unlink()
        return [job.job_id for job in jobs]

    def _build_parameters(self, size: _AgentSize, tasks: Sequence[Task]) -> dict[str, Any]:
        setup = self.options.get("setup")
        options = {name: self.options.get(name) for name in ("partition", "account", "qos", "constraint")}
        return {
            **{name: value for name, value in options.items() if value is not None},
            "job_name": f"{_JOB_NAME}{tasks[0].study}",
            "time": self._minutes,
            "signal_delay_s": self._leave_delay_seconds(size.grace),
            "nodes": 1,
            "ntasks_per_node": 1,
            "cpus_per_task": size.cpus,
            # srun does not inherit this from sbatch
            "srun_args": [f"--cpus-per-task={size.cpus}"],
            **({"gres": f"gpu:{size.gpus}"} if size.gpus else {}),
            **({"mem": f"{math.ceil(size.memory / 2**20)}M"} if size.memory is not None else {}),
            "array_parallelism": self._parallel or len(tasks),
            "setup": None if setup is None else [f"{{\n{setup}\n}} || exit 1"],
            "teardown": [_REQUEUE_SCRIPT],
            "wckey": None,
            "additional_parameters": {"requeue": True, **self._extra},
        }

    def jobs(self, ids: Sequence[str]) -> list[Job]:
        """Return the states of jobs: from Slurm if it knows them, else from their files.

        While Slurm does not answer, the last known states: a search does not need its controller.
        """
        try:
            states = _query_queue(ids)
        except _SlurmUnavailableError as error:
            message = f"Slurm does not answer: {error}"
            return [self._job_cache.get(id, Job(id=id, state="waiting", message=message)) for id in ids]
        jobs = [self._job(id, *states.get(id, ("", ""))) for id in ids]
        self._job_cache.update(zip(ids, jobs, strict=True))
        return jobs

    def _job(self, id: str, state: str, reason: str) -> Job:
        if state in _WAITING_STATES:
            return Job(id=id, state="waiting", message="" if reason == "None" else reason)
        if state in _RUNNING_STATES:
            return Job(id=id, state="running")
        folder = self._find_folder(id)
        ending = None if folder is None else slurm_entrypoint.read_ended(folder, id)
        if ending is not None:
            return ending.to_job(id)
        if state in ("", "CANCELLED") or folder is None:
            return Job(id=id, state="gone")
        return Job(
            id=id, state="failed", message=f"Slurm ended it: {state}. Its output is in {folder}/{id}_*"
        )

    def _find_folder(self, id: str) -> Path | None:
        path = next(self._folder.glob(f"*/{id}_*"), None) if _ID.fullmatch(id) else None
        return None if path is None else path.parent

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel waiting jobs; shut down the agents of the others, and wait until they have left."""
        deadline, next_signal_at = time.monotonic() + _CANCEL_TIMEOUT_SECONDS, 0.0
        without_requeue_ids: set[str] = set()
        while active_jobs := {
            id: state
            for id, (state, _) in _query_queue(ids).items()
            if state in _WAITING_STATES | _RUNNING_STATES
        }:
            if waiting_ids := [id for id, state in active_jobs.items() if state in _WAITING_STATES]:
                _run_slurm_command("scancel", "--quiet", "--state=PENDING", *waiting_ids, check=False)
            running_ids = [id for id, state in active_jobs.items() if state in _RUNNING_STATES]
            for id in sorted({*running_ids} - without_requeue_ids):
                _run_slurm_command("scontrol", "update", f"JobId={id}", "Requeue=0", check=False)
                without_requeue_ids.add(id)
            # repeated: a job that has just begun does not handle the signal yet
            if running_ids and time.monotonic() >= next_signal_at:
                _run_slurm_command("scancel", "--quiet", "--signal=USR2", *running_ids, check=False)
                next_signal_at = time.monotonic() + _SIGNAL_INTERVAL_SECONDS
            stuck_ids = [id for id, state in active_jobs.items() if state in ("SUSPENDED", "STOPPED")]
            if stuck_ids or time.monotonic() > deadline:
                _run_slurm_command("scancel", "--quiet", *(stuck_ids or active_jobs), check=False)
            time.sleep(0.5)
        self._remove_submission_files(ids)

    def _remove_submission_files(self, ids: Sequence[str]) -> None:
        """Remove the submission files of cancelled jobs; a job without an end record never started."""
        for id in ids:
            folder = self._find_folder(id)
            if folder is not None:
                submitit.core.utils.JobPaths(folder, job_id=id).submitted_pickle.unlink(missing_ok=True)
                if slurm_entrypoint.read_ended(folder, id) is None:
                    slurm_entrypoint.write_ended(folder, id, ExitInfo(code=130))


def _run_slurm_command(*words: str, check: bool = True) -> str:
    """Run a command of Slurm, and return its output; with ``check``, raise UsageError if it failed."""
    for pause in (*_RETRY_PAUSE_SECONDS, None):
        done = subprocess.run(words, capture_output=True, text=True)
        away = done.returncode != 0 and re.search("contact|timed out|refused", done.stderr)
        if not away or pause is None:
            break
        # the controller may be busy or restarting
        time.sleep(pause)
    if check and done.returncode != 0:
        raise (_SlurmUnavailableError if away else UsageError)(f"{words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def _query_queue(ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return state and reason of the jobs of tempopt that Slurm knows.

    Not through submitit, which uses sacct and so needs an accounting database that not every cluster has.
    """
    numbers = sorted({id.partition("_")[0] for id in ids if _ID.fullmatch(id)})
    if not numbers:
        return {}
    options = "--noheader --array --states=all --format=%i|%T|%j|%r --jobs".split()
    try:
        lines = _run_slurm_command("squeue", *options, ",".join(numbers)).splitlines()
    except UsageError as error:
        # the message if the only job is gone
        if "Invalid job id" in str(error):
            return {}
        raise
    # an array is listed with all of its members
    rows = (line.split("|", 3) for line in lines)
    return {
        id: (state, reason) for id, state, name, reason in rows if id in ids and name.startswith(_JOB_NAME)
    }


@contextlib.contextmanager
def _sbatch_environment(storage: str) -> Iterator[None]:
    """Add the database's URL to the environment of sbatch, and remove variables of an enclosing job.

    A server's token is removed as well, since Slurm would store it: agents read it from a file.
    """
    before = dict(os.environ)
    for name in before:
        is_own = name in ("SBATCH_EXPORT", "TEMPOPT_TOKEN")
        if (name.startswith("SLURM_") and name != "SLURM_CONF") or is_own:
            del os.environ[name]
    os.environ[slurm_entrypoint.STORAGE] = storage
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _count_gpus(gres: str) -> int:
    """Return the number of GPUs of a node, as in ``gpu:a100:4(S:0-1),gpu:v100:2``."""
    counts = re.findall(r"(?:^|,)gpu(?::[^:,(]+)??(?::(\d+))?(?=[,(]|$)", gres)
    return sum(int(count or 1) for count in counts)


def _parse_minutes(text: str) -> int:
    """Return the minutes of a text in minutes or ``[DAYS-]HH:MM:SS``, rounded up."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text)
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups()) if match else (0, 0, 0, 0)
    total = math.ceil(((24 * days + hours) * 60 + minutes) + seconds / 60)
    if total == 0:
        raise UsageError(f"--launch time={text}: give minutes, as in 90, or [DAYS-]HH:MM:SS, as in 01:30:00.")
    return total


def _parse_extra_options(text: str) -> dict[str, str | bool]:
    """Return further options of sbatch, given as ``NAME=VALUE;NAME``."""
    options: dict[str, str | bool] = {}
    for option in filter(None, (part.strip().removeprefix("--") for part in text.split(";"))):
        name, equals, value = option.partition("=")
        name = name.strip().replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z-]*", name) or name in _RESERVED_OPTIONS:
            raise UsageError(
                f"--launch extra={text}: {option!r} is not allowed. Give options of sbatch as NAME=VALUE or "
                f"NAME, with semicolons between them, other than {', '.join(sorted(_RESERVED_OPTIONS))}."
            )
        options[name] = value.strip() if equals else True
    return options
