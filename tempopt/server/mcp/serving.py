"""Serve the tools over the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import json
import re
import sys
import traceback
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from tempopt.errors import TempoptError, mask_secrets, shorten_message, unknown
from tempopt.server.mcp.session import Session
from tempopt.server.mcp.tools import TOOLS, Tool, call
from tempopt.version import __version__

_TOKENS = re.compile(r'"id"\s*:\s*(?P<id>"[^"\\]{0,100}"|-?\d{1,18}(?![\d.eE]))|"(?:[^"\\]|\\.)*"|[\[\]{}]')
_INSTRUCTIONS = (
    "tempopt searches temperatures of attention and losses, and says by trainings on fresh seeds whether a "
    "change gains anything. Use plan before search or compare. Both return at once: call show every minute "
    "or so until state is done, then verdict. Keep a change only where the verdict's answer is gain_shown. "
    "What is listed in not_shown is not known to be true: do not claim it. A budget may limit "
    "what you can begin."
)


def serve(session: Session) -> None:
    """Answer one client on standard input and output until it disconnects.

    Other output of the process is redirected from standard output to standard error.
    """
    anyio.run(_serve, session)


async def _serve(session: Session) -> None:
    server = make_server(session)
    requests, readable = anyio.create_memory_object_stream[Any]()

    async def pass_requests() -> None:
        """Pass on what can be read; answer what cannot, which the SDK only logs."""
        async with requests:
            async for message in reading:
                if isinstance(message, Exception):
                    await writing.send(SessionMessage(_refuse_request(message)))
                else:
                    await requests.send(message)

    async with stdio_server() as (reading, writing), anyio.create_task_group() as tasks:
        tasks.start_soon(pass_requests)
        await server.run(readable, writing, server.create_initialization_options())


def _refuse_request(error: Exception) -> types.JSONRPCError:
    """Return the answer to a line that is not a request, with its id if that can be read."""
    text = error.errors(include_url=False)[0]["input"] if isinstance(error, ValidationError) else None
    message = (
        "This is no request of JSON-RPC 2.0, or is nested too deeply. Send an object with jsonrpc, id, "
        "method and params."
    )
    return types.JSONRPCError(
        jsonrpc="2.0",
        id=_find_request_id(text) if isinstance(text, str) else None,
        error=types.ErrorData(code=types.PARSE_ERROR, message=message),
    )


def _find_request_id(line: str) -> str | int | None:
    """Return the id at the top level of a request that cannot be parsed."""
    level = 0
    for token in _TOKENS.finditer(line):
        level += (token[0] in "[{") - (token[0] in "]}")
        if level == 1 and token["id"] is not None:
            request_id: str | int = json.loads(token["id"])
            return request_id
    return None


def make_server(session: Session) -> Server[dict[str, Any]]:
    """Return an MCP server with the tools of a session."""

    async def list_tools(context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_to_mcp_tool(tool) for tool in TOOLS.values()])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await anyio.to_thread.run_sync(lambda: _answer_call(session, params))

    return Server(
        "tempopt",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _to_mcp_tool(tool: Tool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.takes.model_json_schema(),
        output_schema=tool.returns.model_json_schema(mode="serialization"),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.reads_only,
            destructive_hint=not tool.reads_only,
            open_world_hint=tool.runs_code,
        ),
    )


def _answer_call(session: Session, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Call a tool and return its answer; an error is returned as text."""
    tool = TOOLS.get(params.name)
    if tool is None:
        return _build_error_result(unknown("tool", params.name, list(TOOLS)))
    try:
        answer = call(session, tool, params.arguments or {})
    except TempoptError as error:
        return _build_error_result(str(error))
    except Exception as error:
        print(mask_secrets(traceback.format_exc()), file=sys.stderr)
        return _build_error_result(
            f"{type(error).__name__}: {error}\nThis was not foreseen. If it is not yours to put right, "
            "please report it; the traceback is on the standard error of tempopt mcp."
        )
    text = types.TextContent(type="text", text=json.dumps(answer, ensure_ascii=False, allow_nan=False))
    return types.CallToolResult(content=[text], structured_content=answer)


def _build_error_result(text: str) -> types.CallToolResult:
    message = shorten_message(mask_secrets(text))
    return types.CallToolResult(content=[types.TextContent(type="text", text=message)], is_error=True)
