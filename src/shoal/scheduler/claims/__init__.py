"""Claims of devices (dynamic resource allocation): what pods ask for by ResourceClaims, and how it is allocated."""
