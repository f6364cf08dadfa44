"""The common code of all shells: handshake, connected socket, and the common half of a driver."""
