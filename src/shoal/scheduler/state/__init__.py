"""The state of the cluster, kept by the watch: requests, holdings and bookings of pods."""
