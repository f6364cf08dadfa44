"""All I/O of lockcore: the handshake, a connected socket, and a driver for each way of waiting."""
