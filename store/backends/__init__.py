"""Databases that keep the promises of store.backend."""
