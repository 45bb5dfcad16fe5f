"""Where checkpoints lie: for agents behind a server under ``tempopt://study/run/file``, and really."""

from __future__ import annotations

from tempopt.errors import UsageError
from tempopt.records.changes import Kept
from tempopt.store.checkpoints import is_ours, join

PREFIX = "tempopt://"


def to_agent(url: str, study: str, run: str) -> str | None:
    """Return the URL under which agents get a checkpoint; None if tempopt has not written it for that run.

    Args:
        url: Where it lies.
        study: Name of the study.
        run: Name of the run's folder.
    """
    if not is_ours(url, study=study, run=run):
        return None
    return f"{PREFIX}{study}/{run}/{url.rpartition('/')[2]}"


def to_real(kept: Kept, study: str, run: str, root: str) -> str:
    """Return where a checkpoint lies that an agent has put through the server.

    Args:
        kept: What the agent says of it.
        study: Name of the study.
        run: Name of the run's folder.
        root: URL of the folder under which the server keeps checkpoints.

    Raises:
        UsageError: It is no checkpoint of that run, or of another attempt or step.
    """
    file = f"step-{kept.checkpoint.step}-{kept.attempt}.ckpt"
    named = f"{PREFIX}{study}/{run}/{file}"
    if kept.checkpoint.url != named:
        raise UsageError(
            f'"{kept.checkpoint.url[:200]}" is no checkpoint of the run {run} of the study "{study}". '
            f"That of step {kept.checkpoint.step} of attempt {kept.attempt} is named {named}."
        )
    return join(root, study, run, file)
