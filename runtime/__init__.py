"""Tenure: CPU-heavy Python jobs in isolated, supervised processes, durably, on PostgreSQL."""
