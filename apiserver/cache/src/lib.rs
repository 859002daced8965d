//! The cache server: copies of the few objects that all shards need, in one place (kcp.md 4).
//!
//! It is the API server over other resources ([`resources`]) in other places ([`CacheServer`] says which paths):
//! handlers, watches and storage are those of `apiserver-server`. What differs is described in
//! [`Resource::is_copy`](apiserver_machinery::Resource::is_copy).
//!
//! Nothing is replicated yet: the server holds what clients write into it. The controllers that push a shard's objects
//! here, and readers that live without it (kcp.md 4.4, 4.5), come later. Nor does it hold definitions of further
//! resources: the table is fixed.
//!
//! # Invariants
//! * An object lies under one shard and one logical cluster; a request that names both reaches nothing else.
//! * Resource versions are those of its own store: they mean nothing to a shard, nor a shard's here.
//!
//! # Cost
//! Reads of one shard, and of everything, cost what they return. Reads of one logical cluster under all shards go
//! through all copies of the resource.

mod path;
pub mod resources;

use std::sync::Arc;

use apiserver_server::{ApiServer, Body, Options, Registry, Service, Trust};
use apiserver_storage::Store;
use bytes::Bytes;
use http::{Request, Response};

/// See the module. Cheap to clone.
///
/// Serves `[/services/cache]/shards/<shard or *>/clusters/<cluster or *>/apis/...` to members of `system:masters`, and
/// `/livez`, `/readyz`, `/healthz` to everybody. Whatever has a `*` in its place can be read; only what has none can be
/// written, except that the collection of one shard over all clusters can be deleted: that drops what a shard which is
/// gone has left behind. Getting one object by name where a `*` stands answers it if it is the only one.
#[derive(Clone)]
pub struct CacheServer(ApiServer);

impl CacheServer {
    /// A server over this store, which an API server may use too: their keys differ in the first segment. It needs no
    /// bootstrap. Of the options only `shutdown` matters.
    pub fn new(store: Arc<dyn Store>, options: Options) -> Self {
        let service = Service {
            resources: resources::all(),
            reviews: &[],
            discovery: resources::discovery(),
            openapi: None,
            address: path::address,
        };
        Self(ApiServer::with_service(store, options, service))
    }

    /// Access to the copies of all shards without HTTP; [`Registry::of_shard`] narrows it, which writes need.
    pub fn registry(&self) -> &Registry {
        self.0.registry()
    }

    /// Answers one request, as [`ApiServer::handle`] does.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have carried out its write; it is never half done.
    pub async fn handle<B>(&self, request: Request<B>, trust: Trust) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.0.handle(request, trust).await
    }
}
