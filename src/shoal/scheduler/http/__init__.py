"""A small HTTP/1.1 server for few callers that ask often: no framework between the socket and the answer."""
