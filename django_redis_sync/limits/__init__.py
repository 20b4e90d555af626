"""Request limits: the policy, whose a request is, taking and holding permits, refusing."""
