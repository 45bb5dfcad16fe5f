"""The server: studies over HTTP, for people, programs and agents that reach no database.

It decides what an agent on a database would decide, with the same code. It loads no torch and runs no code of
users.
"""
