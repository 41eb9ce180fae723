//! A client of the agent over its unix socket.
