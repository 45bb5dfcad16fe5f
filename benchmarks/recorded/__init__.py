"""Recorded trainings: whole validation curves of fixed configurations, on which searches are simulated."""
