"""Tempers the attention of a model that knows nothing of it, and tests that it did."""

from tempopt.attention.attach.attachment import Attachment, attach, detach

__all__ = ["Attachment", "attach", "detach"]
