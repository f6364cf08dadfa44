"""What all ways of waiting share: handshake, connected socket, the common half of a driver."""
