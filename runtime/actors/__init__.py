"""One file per process role: its shell, with one place that blocks."""
