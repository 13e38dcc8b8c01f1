"""The benchmark: Tenure beside other queues on one private PostgreSQL, and the goals that it must reach.

`run` (the command) makes the driver's environment and starts `__main__`, the driver: it makes an environment for each
peer, starts the servers, runs each workload for one peer after the other, A B A B, and renders the tables. Each
single run is a process of its own in the peer's environment (`one`), in which an `adapter` of `peers/` stands between
the product and the `workloads`. `goals`, `figures` and `report` are pure: rows in, text out.
"""
