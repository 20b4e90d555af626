"""The protocol: key names, Lua scripts, and the plans that run them. No redis, no Django."""
