//! The node agent: observe, plan, apply; journal, runners, HTTP server.
#![forbid(unsafe_code)]
