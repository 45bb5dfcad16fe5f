"""What an agent shows of a study: its tickets, its own workers, and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence

from tempopt.agent.observer import Snapshot, WorkerView
from tempopt.agent.study_cache import StudyCache
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import KINDS


def build_snapshot(
    cache: StudyCache,
    spec: StudySpec,
    workers: Sequence[WorkerView],
    elapsed: float,
    *,
    at_work: int | None = None,
) -> Snapshot:
    """Return the study as one agent sees it, or a process that only reads the store.

    Args:
        cache: The tickets.
        spec: The study's spec.
        workers: What each worker that is known of does, those of other agents included.
        elapsed: Seconds since the agent, or the process that looks, began.
        at_work: Number of workers that share what is left to do; None: those that are not silent.
    """
    best = cache.arms.best()
    return Snapshot(
        study=spec.study.name,
        metric=spec.study.metric,
        direction=spec.study.direction,
        stage=next((view.kind for view in workers if view.kind is not None), None),
        done={kind: cache.done[kind] for kind in KINDS},
        requested=cache.requested_counts(),
        best=best.value if best is not None else None,
        best_params=dict(best.parameters or {}) if best is not None else {},
        baseline_mean=cache.baseline(),
        workers=list(workers),
        elapsed=elapsed,
        remaining=_remaining(cache, sum(not view.silent for view in workers) if at_work is None else at_work),
        confirms_on=spec.study.confirm_on,
    )


def _remaining(cache: StudyCache, workers: int) -> float | None:
    seconds = cache.seconds_left() if workers else None
    return None if seconds is None else seconds / workers
