"""The modules that find, start, examine and stop the servers. Nothing stays behind."""
