"""The web page that shows a cluster, and its API: who has which part of which card, what is used, who waits and why."""
