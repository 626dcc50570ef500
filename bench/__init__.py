"""The benchmark: what this machine does, beside Valkey on the same machine in the same minutes."""
