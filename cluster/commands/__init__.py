"""The subcommands of `tallyring`, a module for each group."""
