"""Search, resume, extend, evaluate and administer studies: called by CLI, Python API, server and MCP."""
