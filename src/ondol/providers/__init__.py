"""Models that Ondol is attached to."""
