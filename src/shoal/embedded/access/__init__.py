"""Who asks, and what they may do: tokens, impersonation and RBAC as the real server has them."""
