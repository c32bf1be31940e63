"""Tests of the simulated driver; a package, so that its conftest is not the one above it."""
