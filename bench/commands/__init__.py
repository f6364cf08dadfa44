"""The commands that are not questions: *options → a run, load, servers, a report, advice*."""
