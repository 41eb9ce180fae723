//! Whole-system runs over the simulated driver; the tests are in `tests/`.
