"""The only I/O of lockcore: the handshake, a connected socket, a driver for each way of waiting."""
