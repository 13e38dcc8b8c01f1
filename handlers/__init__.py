"""Examples that do real work; put yours here. Every module in this package is imported by every worker."""
