"""How to touch the world: the database, pipes, processes, signals, the clock, the log."""
