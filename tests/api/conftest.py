"""What the display of a notebook is shown in tests."""

from __future__ import annotations

from tests.progress_fixtures import make_snapshot as make_snapshot
