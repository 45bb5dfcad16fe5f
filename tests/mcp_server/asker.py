"""A client of the protocol's own SDK: asks a process ``tempopt mcp`` over its standard input and output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
from mcp import Client, StdioServerParameters


class Asker:
    """Asks tools, and holds what they answer against their schemas."""

    def __init__(self, client: Client, schemas: dict[str, Any]) -> None:
        self.client = client
        self.schemas = schemas

    async def ask(self, tool: str, **given: Any) -> dict[str, Any]:
        """Return what a tool answers, which is as its schema says."""
        found = await self.client.call_tool(tool, given)
        assert not found.is_error, found.content[0].text  # type: ignore[union-attr]
        answer = found.structured_content
        assert answer is not None
        jsonschema.validate(answer, self.schemas[tool])
        assert json.loads(found.content[0].text) == answer  # type: ignore[union-attr]
        return answer

    async def refused(self, tool: str, **given: Any) -> str:
        """Return the error with which a tool refuses."""
        found = await self.client.call_tool(tool, given)
        assert found.is_error, found.structured_content
        assert found.structured_content is None
        [content] = found.content
        return content.text  # type: ignore[union-attr]

    async def until(self, study: str, state: str) -> dict[str, Any]:
        """Return what show answers once a study stands so."""
        until = time.monotonic() + 900
        while time.monotonic() < until:
            answer = await self.ask("show", study=study)
            if answer["state"] == state:
                return answer
            # it may have to wait for its turn, and that is said
            assert answer["state"] == "waiting" or answer["troubles"] == []
            await asyncio.sleep(1)
        raise AssertionError(f"{study} is not {state}, but {answer['state']}: {answer['troubles']}")

    async def until_done(self, study: str) -> dict[str, Any]:
        """Return what show answers once a study is over."""
        answer = await self.until(study, "done")
        assert answer["troubles"] == []
        return answer


@asynccontextmanager
async def session(*words: str, folder: Path | None = None, **environment: str) -> AsyncIterator[Asker]:
    """Yield who asks a process ``tempopt mcp`` with these words, in a folder or the current one."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "XDG_CONFIG_HOME") if name in os.environ}
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tempopt", "mcp", *words],
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        cwd=folder or Path.cwd(),
    )
    async with Client(server, read_timeout_seconds=280) as client:
        tools = (await client.list_tools()).tools
        yield Asker(client, {each.name: each.output_schema for each in tools})


def run(does: Callable[[], Awaitable[None]]) -> None:
    """Carry out what is asynchronous, to its end."""

    async def main() -> None:
        await does()

    asyncio.run(main())
