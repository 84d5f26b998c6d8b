"""What does a person see in a browser?

Pages that are rendered here and work as they come: links, forms, redirects. One small module of JavaScript makes them
grow while things happen, over the same streams of ``/v1`` that any program reads; nothing is asked of another server.

``looking`` has the pages, ``acting`` the forms, ``memory`` both of what agents remember, ``shown`` how a value looks,
``timeline``, ``chat`` and ``share`` what is drawn from what is recorded.
"""

from ondol.http.console.door import pages

__all__ = ["pages"]
