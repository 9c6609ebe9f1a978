"""The extender's own certificates, made at its first start and kept in a Secret."""
