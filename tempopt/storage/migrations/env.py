"""Run the migrations, on the connection and in the transaction that alembic's config has."""

from __future__ import annotations

from alembic import context

from tempopt.storage.models import METADATA
from tempopt.storage.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
)
context.run_migrations()
