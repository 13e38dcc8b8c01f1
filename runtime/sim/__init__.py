"""The actors' rules against the in-memory store, in virtual time, with faults, each run made by its seed.

`world` holds time and chance, `database` a store that can go away, `worker`, `scheduler` and `node` the
shells of the actors as the real ones behave, `faults` what goes wrong and when, `history` what is written
down and what must hold of it, `schedule` one run from its seed. `python -m runtime.sim` runs many.
"""
