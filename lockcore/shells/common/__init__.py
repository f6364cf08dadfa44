"""The common code of all shells: the handshake, the connected socket, and the base of drivers."""
