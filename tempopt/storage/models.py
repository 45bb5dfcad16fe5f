"""The current tables of the store; the migrations have their history.

Searched keys are columns, documents are JSON text. States and kinds are plain strings without CHECK, so that
SQLite can accept a new one without rebuilding the table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.dialects import mysql

from tempopt.storage.damage import UNREADABLE

MAX_NAME = 255

# MySQL's own TEXT ends at 64 KiB and its DATETIME at full seconds.
LongText = Text().with_variant(mysql.LONGTEXT(), "mysql")
Moment = DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")

# utf8mb4_bin: names that differ in case are different names, as on the other databases.
# sqlite_autoincrement: the id of a deleted row is never used again.
OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_default_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "sqlite_autoincrement": True,
}


class _Tolerant(TypeDecorator[Any]):
    """A type whose damaged values are UNREADABLE in Python, so that the rest of the row can be read."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        process = super().result_processor(dialect, coltype)
        assert process is not None

        def read(value: Any) -> Any:
            try:
                return process(value)
            except (ValueError, TypeError, RecursionError):
                return UNREADABLE

        return read


class JsonDocument(_Tolerant):
    """Plain data as JSON text, which preserves key order and floats exactly on every database."""

    impl = LongText
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else json.dumps(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class Utc(_Tolerant):
    """A time: aware and UTC in Python, naive UTC in the table."""

    impl = Moment
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class NonFiniteFloat(TypeDecorator[float]):
    """A measured value; if it is not finite, NaN in Python and null in the table."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    def process_result_value(self, value: float | None, dialect: Dialect) -> float:
        return math.nan if value is None else value


METADATA = MetaData()
_ZERO = text("0")
_ONE = text("1")

STUDY = Table(
    "tempopt_study",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", String(MAX_NAME), nullable=False),
    Column("spec", JsonDocument, nullable=False),
    Column("spec_hash", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("created", Utc, nullable=False),
    Column("version", Integer, nullable=False, server_default=_ZERO),
    Column("checkpoints", LongText),
    Column("warm_start", JsonDocument),
    Column("owner", String(MAX_NAME), nullable=False, server_default=""),
    Column("priority", Integer, nullable=False, server_default=_ZERO),
    Column("parallel", Integer, nullable=False, server_default=_ONE),
    UniqueConstraint("name", name="tempopt_study_name"),
    **OPTIONS,
)

TICKET = Table(
    "tempopt_ticket",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("study_id", ForeignKey("tempopt_study.id", name="tempopt_ticket_study"), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("stage", Integer, nullable=False, comment="place of the kind in the order of work"),
    Column("arm", String(255), nullable=False),
    Column("number", Integer, nullable=False),
    Column("candidate", Integer),
    Column("pair", Integer),
    Column("seed", BigInteger, nullable=False),
    Column("parameters", JsonDocument),
    Column("trial_number", Integer),
    Column("state", String(16), nullable=False),
    Column("outcome", String(16)),
    Column("attempt", Integer, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("value", Double),
    Column("diverged_at", BigInteger),
    Column("error", LongText),
    Column("agent", String(MAX_NAME)),
    Column("seconds", Double, nullable=False),
    Column("steps", BigInteger),
    Column("total_steps", BigInteger),
    Column("code", LongText),
    Column("started", Utc),
    Column("finished", Utc),
    Column("trial_id", Integer, comment="key of the trial in Optuna's table"),
    Column("round", Integer, nullable=False, server_default=_ZERO),
    Column("sampled", JsonDocument),
    Column("lease", Double, comment="end, in epoch seconds of the database's clock"),
    Column("checkpoints", JsonDocument),
    Column("checkpoint_seconds", Double, nullable=False, server_default=_ZERO),
    Column("alone", Boolean, nullable=False, server_default=false()),
    Column("gpu_seconds", Double, nullable=False, server_default=_ZERO),
    Column("peak_memory", BigInteger),
    Column("machine", String(MAX_NAME)),
    Column("device", String(MAX_NAME)),
    UniqueConstraint("study_id", "kind", "number", name="tempopt_ticket_number"),
    # The order in which tickets are claimed: the next one is found, and locked, without a sort.
    Index("tempopt_ticket_next", "study_id", "state", "stage", "number"),
    **OPTIONS,
)

MEASUREMENT = Table(
    "tempopt_measurement",
    METADATA,
    Column("ticket_id", ForeignKey("tempopt_ticket.id", name="tempopt_measurement_ticket"), primary_key=True),
    Column("name", String(MAX_NAME), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("value", NonFiniteFloat, comment="null: measured, and not a finite number"),
    **{**OPTIONS, "sqlite_autoincrement": False},
)

LOG = Table(
    "tempopt_log",
    METADATA,
    Column("ticket_id", ForeignKey("tempopt_ticket.id", name="tempopt_log_ticket"), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("agent", String(MAX_NAME), nullable=False),
    Column("text", LongText, nullable=False),
    Column("written", Utc, nullable=False),
    **{**OPTIONS, "sqlite_autoincrement": False},
)

ATTENTION_MAP = Table(
    "tempopt_attention_map",
    METADATA,
    Column("ticket_id", ForeignKey("tempopt_ticket.id", name="tempopt_map_ticket"), primary_key=True),
    Column("maps", JsonDocument, nullable=False),
    **{**OPTIONS, "sqlite_autoincrement": False},
)

# By the study's name: agents are started before the study exists, and the first one creates it.
JOB = Table(
    "tempopt_job",
    METADATA,
    Column("number", Integer, primary_key=True, comment="in the order in which they were started"),
    Column("study", String(MAX_NAME), nullable=False),
    Column("launcher", String(MAX_NAME), nullable=False),
    Column("id", String(MAX_NAME), nullable=False),
    Column("options", JsonDocument, nullable=False),
    Column("created", Utc, nullable=False),
    Index("tempopt_job_study", "study"),
    **OPTIONS,
)

TOKEN = Table(
    "tempopt_token",
    METADATA,
    Column("id", String(MAX_NAME), primary_key=True),
    Column("name", String(MAX_NAME), nullable=False),
    Column("digest", String(MAX_NAME), nullable=False, comment="SHA-256 of the token"),
    Column("scopes", JsonDocument, nullable=False),
    Column("studies", String(MAX_NAME), nullable=False),
    Column("created", Utc, nullable=False),
    Column("expires", Utc),
    Column("used", Utc),
    Column("revoked", Utc),
    Column("created_by", String(MAX_NAME), nullable=False),
    Column("user", String(MAX_NAME), nullable=False, server_default=""),
    **{**OPTIONS, "sqlite_autoincrement": False},
)

AUDIT = Table(
    "tempopt_audit",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("moment", Utc, nullable=False),
    Column("name", String(MAX_NAME), nullable=False),
    Column("token", String(MAX_NAME), nullable=False),
    Column("address", String(MAX_NAME), nullable=False),
    Column("action", String(MAX_NAME), nullable=False),
    Column("status", Integer, nullable=False),
    Column("study", String(MAX_NAME), nullable=False),
    Column("detail", String(MAX_NAME), nullable=False),
    **OPTIONS,
)

SESSION = Table(
    "tempopt_session",
    METADATA,
    Column("digest", String(64), primary_key=True, comment="SHA-256 of the browser's secret"),
    Column("token", String(MAX_NAME), nullable=False),
    Column("created", Utc, nullable=False),
    Column("expires", Utc, nullable=False),
    Index("tempopt_session_token", "token"),
    **{**OPTIONS, "sqlite_autoincrement": False},
)
