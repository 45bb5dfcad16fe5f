"""The server: studies over HTTP, for people, programs and agents without access to the database.

Makes the decisions of an agent, with the same code. Does not load torch or run users' code.
"""
