"""Real model servers, small enough for this machine's CPU: see README.md."""
