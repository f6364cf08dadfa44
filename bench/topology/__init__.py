"""Where the servers come from: found, started, asked what they are, and stopped without a trace."""
