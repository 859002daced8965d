//! The cache server: shared objects of all shards in one place.
