"""Commands that answer no question: *options → a run, load, servers, a report, advice*."""
