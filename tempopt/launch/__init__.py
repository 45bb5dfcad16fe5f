"""Launchers: start agents where there is room for them, and restart them when they die."""
