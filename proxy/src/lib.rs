//! The gateway: listeners, TLS, authentication, shard index, forwarding, admin endpoints.
