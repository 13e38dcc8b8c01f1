"""The command line: one module a command group; a command parses, calls one function and prints."""
