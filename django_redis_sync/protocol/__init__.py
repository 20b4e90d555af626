"""The protocol: key grammar, Lua verbs and the plans that speak them. No redis, no Django."""
