"""GPU tests side by side under pytest-xdist, each within a memory limit that Divvy enforces.

Each worker of pytest-xdist is a job of Divvy with a slice of a GPU. Before a test the slice gets the size that the test
needs, and afterwards it gives back what the test no longer holds. See ``docs/pytest.md`` of Divvy.
"""
