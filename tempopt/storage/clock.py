"""The database's clock in SQL: leases are compared across machines, whose own clocks differ."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class Clock(FunctionElement[float]):
    """Seconds since 1970 by the database's clock, as a double; advances within a transaction."""

    type = Double()
    inherit_cache = True


@compiles(Clock, "sqlite")
def _compile_sqlite(element: Clock, compiler: SQLCompiler, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(Clock, "postgresql")
def _compile_postgresql(element: Clock, compiler: SQLCompiler, **options: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(Clock, "mysql")
def _compile_mysql(element: Clock, compiler: SQLCompiler, **options: Any) -> str:
    # Unique because each session is set to UTC: in other time zones one hour of the year occurs twice.
    return "UNIX_TIMESTAMP(NOW(6))"
