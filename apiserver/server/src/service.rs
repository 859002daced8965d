//! What a server serves, and how the paths of its requests say where it is: by this the API server and the cache
//! server differ, everything behind is the same.

use std::{borrow::Cow, sync::Arc};

use apiserver_api::{ClusterName, RequestInfo, Status, url};
use apiserver_machinery::{
    Resource, builtin,
    discovery::{self, Discovery},
    openapi::{self, OpenApi},
};

/// Where a request goes, as its path says; `rest` is the raw path behind that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address<'a> {
    /// A logical cluster, by name or path.
    Cluster {
        /// Decoded and well formed.
        path: Cow<'a, str>,
        /// The Kubernetes path.
        rest: &'a str,
    },
    /// All logical clusters.
    Wildcard {
        /// The Kubernetes path.
        rest: &'a str,
    },
    /// No place: what belongs to the process.
    Process {
        /// The whole path.
        rest: &'a str,
    },
    /// A place in the cache server. Nothing is looked up: what no shard ever put there is empty.
    Shard {
        /// `None` = all shards.
        shard: Option<Arc<str>>,
        /// `None` = all logical clusters.
        cluster: Option<ClusterName>,
        /// The Kubernetes path.
        rest: &'a str,
    },
}

impl<'a> Address<'a> {
    /// The raw path behind the place.
    pub fn rest(&self) -> &'a str {
        match self {
            Self::Cluster { rest, .. }
            | Self::Wildcard { rest }
            | Self::Process { rest }
            | Self::Shard { rest, .. } => rest,
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// The resources, those of one group and version side by side.
    pub resources: &'static [Resource],
    /// The kinds that are only created, and answered with what was asked.
    pub reviews: &'static [Resource],
    /// The documents of these resources.
    pub discovery: &'static Discovery,
    /// Their schemas; `None` when they have none.
    pub openapi: Option<&'static OpenApi>,
    /// Reads the raw path of a request.
    pub address: fn(&str) -> Result<Address<'_>, Status>,
}

impl Service {
    /// The API server: the built-in resources, below `/clusters/`.
    pub(crate) fn clusters() -> Self {
        Self {
            resources: builtin::served(),
            reviews: builtin::reviews(),
            discovery: discovery::builtin(),
            openapi: Some(openapi::builtin()),
            address: of_cluster,
        }
    }

    /// The resource of this group (empty for core), version and plural.
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
        self.resources.iter().find(|r| r.plural == plural && r.group == group && r.version == version)
    }

    /// What a request is for, if that is served.
    pub(crate) fn asked(&self, info: &RequestInfo<'_>) -> Option<&'static Resource> {
        let is_it =
            |r: &&Resource| r.plural == info.resource && r.group == info.api_group && r.version == info.api_version;
        self.resources.iter().chain(self.reviews).find(is_it).filter(|_| info.is_resource)
    }
}

fn of_cluster(path: &str) -> Result<Address<'_>, Status> {
    match url::split(path)? {
        url::Target::Cluster { path, rest } => Ok(Address::Cluster { path, rest }),
        url::Target::Wildcard { rest } => Ok(Address::Wildcard { rest }),
        url::Target::None { rest } => Ok(Address::Process { rest }),
        url::Target::Cache { .. } | url::Target::VirtualWorkspace { .. } => Err(Status::no_such_resource()),
    }
}
