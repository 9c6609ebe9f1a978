"""The face of the embedded API server towards its clients: authentication, discovery, routes, watches."""
