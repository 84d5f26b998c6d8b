"""Databases that Ondol is attached to."""
