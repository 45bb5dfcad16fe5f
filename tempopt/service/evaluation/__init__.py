"""Evaluate a trained model at other temperatures and generation parameters: ``tempopt evaluate``."""
