"""The cluster manager: takes pods to the joined cluster that can serve them best, loses none and runs none twice."""
