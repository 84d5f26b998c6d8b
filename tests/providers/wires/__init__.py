"""The wires that the contract of providers is checked on: one module each, all with the face of ``script.Wire``."""
