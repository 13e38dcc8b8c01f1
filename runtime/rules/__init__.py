"""What to do: pure functions and state machines. Time and chance are arguments, nothing is touched."""
