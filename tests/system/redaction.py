"""The redaction hook of a test service."""

from __future__ import annotations


def hook(text: str) -> str:
    return f"{len(text)} characters"
