"""Where checkpoints lie: for agents behind a server under ``tempopt://study/run/file``, and really."""

from __future__ import annotations

from tempopt.errors import UsageError
from tempopt.storage.changes import CheckpointRecorded
from tempopt.storage.checkpoints import belongs_to_run, join

PREFIX = "tempopt://"


def to_agent(url: str, study: str, run: str) -> str | None:
    """Return the URL under which agents get a checkpoint; None if tempopt has not written it for that run.

    Args:
        url: Where it lies.
        study: Name of the study.
        run: Name of the run's folder.
    """
    if not belongs_to_run(url, study=study, run=run):
        return None
    return f"{PREFIX}{study}/{run}/{url.rpartition('/')[2]}"


def to_real(change: CheckpointRecorded, study: str, run: str, root: str) -> str:
    """Return where a checkpoint lies that an agent has put through the server.

    Args:
        change: What the agent says of it.
        study: Name of the study.
        run: Name of the run's folder.
        root: URL of the folder under which the server keeps checkpoints.

    Raises:
        UsageError: It is no checkpoint of that run, or of another attempt or step.
    """
    file = f"step-{change.checkpoint.step}-{change.attempt}.ckpt"
    expected_url = f"{PREFIX}{study}/{run}/{file}"
    if change.checkpoint.url != expected_url:
        raise UsageError(
            f'"{change.checkpoint.url[:200]}" is no checkpoint of the run {run} of the study "{study}". '
            f"That of step {change.checkpoint.step} of attempt {change.attempt} is named {expected_url}."
        )
    return join(root, study, run, file)
