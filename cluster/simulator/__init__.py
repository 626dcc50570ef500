"""The simulator: many agents in one thread, in virtual time, from one seed.

It drives the real protocol, commit and apply code over in-memory stores, breaks the network and
the agents in every way that a script of events can name, and holds the result against a
plain-integer history of what was acknowledged. A seed is a run; a run is repeated exactly.

    script.py    what will happen: events, with all chance drawn in advance
    agent.py     one agent: the rim around the core, with the faults of its disk
    world.py     virtual time, messages in flight, faults, healing
    history.py   what was written, and the checks
    report.py    `simulate`: one seed, its report, and the shortest script that still fails
"""

from cluster.simulator.report import Report, simulate

__all__ = ["Report", "simulate"]
