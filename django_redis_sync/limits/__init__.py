"""Request limits: the policy, a request's key, taking and holding permits, refusing."""
