"""Where a write-ahead sink remembers what it has delivered."""
