"""Attention, its normalisers and its entropy as functions of tensors."""
