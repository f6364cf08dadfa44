"""The servers: how lockbench finds, starts, examines and stops them. Nothing stays behind."""
