"""The only I/O of lockcore: the handshake, a connected socket, and one driver per way of waiting."""
