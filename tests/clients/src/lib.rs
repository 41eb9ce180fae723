//! Third-party GPU clients that the tests and the demo run.
