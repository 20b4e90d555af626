"""The admin's pages: what they show, what can be done there, over HTTP."""
