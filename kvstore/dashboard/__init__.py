"""The dashboard: one page, in which an operator sees what is reused, what that saves, and why the rest is computed.

`offer.py` is all that others import; it needs no more than the sidecar does. NiceGUI (the extra `dashboard`) is
imported in `page.py`, `parts.py` and what imports these, once somebody looks. Data flow: `snapshot.py` reads the store,
`views/` make plain values of it for one part of the page each, `feed.py` does both once a second for all who look, and
`parts.py` sends each part to the browser, where `static/` draws it.
"""
