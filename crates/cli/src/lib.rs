//! The commands: a client of the agent's HTTP contract and nothing else.
#![forbid(unsafe_code)]
