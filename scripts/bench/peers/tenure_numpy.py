"""The same jobs in a program that imports NumPy."""

from __future__ import annotations

import numpy as np

from bench.peers.tenure_jobs import KINDS

__all__ = ["KINDS", "np"]
