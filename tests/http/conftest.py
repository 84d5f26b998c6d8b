"""What the tests of the HTTP door share is in ``door``; those in folders below find it too."""
