"""The Python libraries that are audited, and locks with a planted fault: each driver alone in its
process."""
