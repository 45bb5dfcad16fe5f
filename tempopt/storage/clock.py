"""The database's own clock in SQL: two machines' clocks differ, and leases are compared across machines."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class Clock(FunctionElement[float]):
    """Seconds since 1970 by the database's clock, as a double; it moves within a transaction."""

    type = Double()
    inherit_cache = True


@compiles(Clock, "sqlite")
def _sqlite(element: Clock, compiler: SQLCompiler, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(Clock, "postgresql")
def _postgresql(element: Clock, compiler: SQLCompiler, **options: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(Clock, "mysql")
def _mysql(element: Clock, compiler: SQLCompiler, **options: Any) -> str:
    # Exact in every session, since each is set to UTC: elsewhere one hour of the year comes twice.
    return "UNIX_TIMESTAMP(NOW(6))"
