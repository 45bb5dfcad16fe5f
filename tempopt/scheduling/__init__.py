"""Which agent of the pool serves which study: fair shares, quotas and priorities, decided on rows alone."""

from tempopt.scheduling.allocation import allocate

__all__ = ["allocate"]
