"""Chaos on real processes: a seeded plan of faults, continuous writes, and a checker of the totals.

plan      which fault strikes whom, when and for how long: drawn from a seed
faults    strikes: processes, links, disks, clocks, Redis; each proves that it happened
disks     copies of databases, and what only a disk that is taken away had
ranks     a Redis server for each region that can be flushed, killed and failed over
ledger    every write and what its client was told: ok, refused or indefinite
clients   the writers and the readers
judge     which values can be right, and what is lost, doubled or invented (pure)
run       one run from start to report
"""
