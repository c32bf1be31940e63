"""How long a test waits for what should take milliseconds; only a failing test waits that long."""

SECONDS = 20
