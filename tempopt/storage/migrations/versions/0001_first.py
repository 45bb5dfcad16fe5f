"""The tables of the first release, which a new database gets from the models and no migration has to make."""

from __future__ import annotations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change nothing."""
