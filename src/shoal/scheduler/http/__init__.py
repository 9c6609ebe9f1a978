"""aiohttp's server within bounds that hold before anybody has said who they are."""
