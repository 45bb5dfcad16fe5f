"""The application: its routes, errors and lifespan."""

from __future__ import annotations

from fastapi import Depends, FastAPI

from tempopt.server import agents, audit, errors, me, monitoring, studies, study_writes, token_routes
from tempopt.server import checkpoints as checkpoint_routes
from tempopt.server.app_state import ServerState
from tempopt.server.audit import Audit
from tempopt.server.authenticator import Authenticator
from tempopt.server.limits import BodyLimitMiddleware, check_query
from tempopt.server.metrics import Metrics
from tempopt.server.pages import routes
from tempopt.server.pages.study_list import StudyList
from tempopt.server.reports import Reports
from tempopt.server.study_session import StudySessionRegistry
from tempopt.storage.store import Store
from tempopt.version import __version__


def create_app(store: Store, *, checkpoints: str) -> FastAPI:
    """Return the application that serves the studies of a store.

    Args:
        store: The database; closed by the caller.
        checkpoints: Absolute URL of the folder for checkpoints.
    """
    # FastAPI's /docs loads scripts from another site
    app = FastAPI(
        title="tempopt",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(check_query)],
    )
    app.state.tempopt = ServerState(
        store=store,
        checkpoints=checkpoints,
        guard=Authenticator(store),
        study_sessions=StudySessionRegistry(store, checkpoints=checkpoints),
        metrics=Metrics(store),
        reports=Reports(store),
        study_list=StudyList(store),
    )
    errors.install(app)
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(Audit)
    for module in (agents, audit, checkpoint_routes, me, token_routes, studies, study_writes):
        app.include_router(module.router)
    app.include_router(routes.router)
    app.add_middleware(monitoring.RequestMetricsMiddleware)
    app.include_router(monitoring.router)
    return app
