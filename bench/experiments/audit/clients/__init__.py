"""Contains the drivers of the audited Python libraries, and locks with a planted fault. Each driver
runs alone in its process."""
