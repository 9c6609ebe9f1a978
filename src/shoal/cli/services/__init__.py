"""Commands that run a service: the scheduler, the agent."""
