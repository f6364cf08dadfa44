"""What an application's lock does, counted: *operations → numbers, durations and samples*."""
