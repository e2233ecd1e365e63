"""The HTTP server: an ASGI application over one engine, with streaming, metrics, a page and a drain."""
