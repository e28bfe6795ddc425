"""Who shares a store: tenants with a salt, quotas and floors of their own, and the heads that they may share."""
