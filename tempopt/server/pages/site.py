"""All pages for people: what the application includes of them."""

from __future__ import annotations

from fastapi import FastAPI

from tempopt.server.app_state import State
from tempopt.server.pages import (
    assets,
    changes,
    optuna,
    pool,
    reference,
    runs,
    shown,
    sign_in,
    studies,
    study,
    submitting,
)

ROUTERS = (
    assets.router,
    sign_in.router,
    studies.router,
    study.router,
    runs.router,
    changes.router,
    pool.router,
    submitting.router,
    reference.router,
)


def install(app: FastAPI, state: State) -> None:
    """Have an application serve the pages."""
    app.state.pages = shown.made(state)
    for router in ROUTERS:
        app.include_router(router)
    optuna.install(app, state.store)
