"""The simulator: many agents in one thread, in virtual time, from one seed.

It drives the real protocol, commit and apply code over in-memory stores, breaks the network and
the agents in every way that a script of events can name, and holds the result against a
plain-integer history of what was acknowledged. A seed is a run; a run is repeated exactly.

What each file is about: README.md beside them.
"""

from cluster.simulator.report import Report, simulate

__all__ = ["Report", "simulate"]
