"""Optuna's dashboard with tempopt's plots and notes."""
