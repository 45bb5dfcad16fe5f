"""What a study keeps of earlier ones, for its sampler to learn from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_NAME = "warm_start"
_LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    """Add the column; if it is there it is left alone, since a MySQL that was killed keeps it."""
    if _NAME not in {there["name"] for there in sa.inspect(op.get_bind()).get_columns("tempopt_study")}:
        op.add_column("tempopt_study", sa.Column(_NAME, _LONG_TEXT))


def downgrade() -> None:
    """Drop what was added."""
    op.drop_column("tempopt_study", _NAME)
