"""Webhooks: signed messages to endpoints that an operator names, sent until they are delivered."""
