"""The life of one pod on a simulated node: admission, its containers' states, status, environment and logs."""
