"""Redis as a peer with a cursor: how the region's rank store is filled, refilled and read."""
