"""One Tallyring agent: the replica of a ring that serves one region."""
