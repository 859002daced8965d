//! Annotations and finalizers by which the parts of the system leave word for each other (kcp.md 1.3, 2).

/// Annotation with the name of the object's logical cluster, on every answer and never stored.
pub const CLUSTER: &str = "kcp.io/cluster";
/// Annotation with the shard whose copy the object is.
pub const SHARD: &str = "kcp.io/shard";
/// Annotation of a LogicalCluster: its path when it was made.
pub const PATH: &str = "kcp.io/path";
/// Annotation of a Workspace and of its LogicalCluster: the shard where the cluster lies.
pub const PLACED_ON: &str = "core.kcp.io/shard";
/// Annotation of a Workspace: the name of its cluster, written down before the cluster is made.
pub const WORKSPACE_CLUSTER: &str = "internal.tenancy.kcp.io/cluster";
/// Annotation of a LogicalCluster: the type of its Workspace, `path:name`.
pub const WORKSPACE_TYPE: &str = "internal.tenancy.kcp.io/type";
/// Annotation of a Workspace: the user who made it, as JSON.
pub const WORKSPACE_OWNER: &str = "experimental.tenancy.kcp.io/owner";
/// Annotations of a LogicalCluster: the administrators took it offline when one of them is `true`.
pub const INACTIVE: [&str; 2] = ["core.kcp.io/inactive", "internal.kcp.io/inactive"];

/// Finalizer that holds a Workspace for as long as its logical cluster exists.
pub const WORKSPACE_FINALIZER: &str = "core.kcp.io/logicalcluster";
/// Finalizer that holds a LogicalCluster for as long as the cluster has content.
pub const CLUSTER_FINALIZER: &str = "core.kcp.io/logicalcluster-deletion";
