"""The door to the network: an ASGI application over a ``Runtime``.

``app`` puts it together; ``guard`` looks at each request before anything else does; ``service`` holds the rules that
the routes of ``/v1`` and the pages of the console share; ``console/`` has the pages.
"""
