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

    async def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return what a tool answers, which is as its schema says."""
        reply = await self.client.call_tool(tool, arguments)
        assert not reply.is_error, reply.content[0].text  # type: ignore[union-attr]
        answer = reply.structured_content
        assert answer is not None
        jsonschema.validate(answer, self.schemas[tool])
        assert json.loads(reply.content[0].text) == answer  # type: ignore[union-attr]
        return answer

    async def refusal(self, tool: str, **arguments: Any) -> str:
        """Return the error with which a tool refuses."""
        reply = await self.client.call_tool(tool, arguments)
        assert reply.is_error, reply.structured_content
        assert reply.structured_content is None
        [content] = reply.content
        return content.text  # type: ignore[union-attr]

    async def wait_for_state(self, study: str, state: str) -> dict[str, Any]:
        """Return what show answers once a study stands so."""
        deadline = time.monotonic() + 900
        while time.monotonic() < deadline:
            answer = await self.ask("show", study=study)
            if answer["state"] == state:
                return answer
            # it may have to wait for its turn, and that is said
            assert answer["state"] == "waiting" or answer["troubles"] == []
            await asyncio.sleep(1)
        raise AssertionError(f"{study} is not {state}, but {answer['state']}: {answer['troubles']}")

    async def until_done(self, study: str) -> dict[str, Any]:
        """Return what show answers once a study is over."""
        answer = await self.wait_for_state(study, "done")
        assert answer["troubles"] == []
        return answer


@asynccontextmanager
async def session(*words: str, folder: Path | None = None, **environment: str) -> AsyncIterator[Asker]:
    """Yield who asks a process ``tempopt mcp`` with these words, in a folder or the current one."""
    env_vars = {name: os.environ[name] for name in ("PYTHONPATH", "XDG_CONFIG_HOME") if name in os.environ}
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "tempopt", "mcp", *words],
        env={**env_vars, "OMP_NUM_THREADS": "1", **environment},
        cwd=folder or Path.cwd(),
    )
    async with Client(server, read_timeout_seconds=280) as client:
        tools = (await client.list_tools()).tools
        yield Asker(client, {tool.name: tool.output_schema for tool in tools})


def run(client_task: Callable[[], Awaitable[None]]) -> None:
    """Carry out what is asynchronous, to its end."""

    async def main() -> None:
        await client_task()

    asyncio.run(main())
