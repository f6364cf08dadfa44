"""Commands that ask no question: *options → a run, load, servers, a report, advice*."""
