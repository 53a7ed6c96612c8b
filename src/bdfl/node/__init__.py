"""A running node: service, settings, status, doctor, HTTP server, access point."""
