//! Structs of kcp's `tenancy.kcp.io/v1alpha1` and `core.kcp.io/v1alpha1` (kcp.md 2.1, 2.2). No protobuf.

use super::{
    API_VERSION, Field, KIND, METADATA, Message, Type, boolean, conditions, message, meta::LABEL_SELECTOR, text, texts,
    time,
};

/// `Workspace`.
pub static WORKSPACE: Message = Message {
    name: "Workspace",
    fields: &[
        KIND,
        API_VERSION,
        METADATA,
        message(0, "spec", &WORKSPACE_SPEC),
        message(0, "status", &WORKSPACE_STATUS),
    ],
};

static WORKSPACE_SPEC: Message = Message {
    name: "WorkspaceSpec",
    fields: &[
        message(0, "type", &WORKSPACE_TYPE_REFERENCE),
        message(0, "location", &WORKSPACE_LOCATION),
        text(0, "cluster"),
        text(0, "URL"),
        message(0, "mount", &MOUNT),
    ],
};

static WORKSPACE_TYPE_REFERENCE: Message =
    Message { name: "WorkspaceTypeReference", fields: &[text(0, "name"), text(0, "path")] };

static WORKSPACE_LOCATION: Message =
    Message { name: "WorkspaceLocation", fields: &[message(0, "selector", &LABEL_SELECTOR).atomic()] };

static MOUNT: Message = Message { name: "Mount", fields: &[message(0, "ref", &MOUNT_REFERENCE)] };

static MOUNT_REFERENCE: Message =
    Message { name: "ObjectReference", fields: &[API_VERSION, KIND, text(0, "name"), text(0, "namespace")] };

static WORKSPACE_STATUS: Message = Message {
    name: "WorkspaceStatus",
    fields: &[text(0, "phase"), conditions(0, &CONDITION), texts(0, "initializers"), texts(0, "terminators")],
};

static CONDITION: Message = Message {
    name: "Condition",
    fields: &[
        text(0, "type"),
        text(0, "status"),
        text(0, "severity"),
        time(0, "lastTransitionTime"),
        text(0, "reason"),
        text(0, "message"),
    ],
};

/// `LogicalCluster`.
pub static LOGICAL_CLUSTER: Message = Message {
    name: "LogicalCluster",
    fields: &[
        KIND,
        API_VERSION,
        METADATA,
        message(0, "spec", &LOGICAL_CLUSTER_SPEC),
        message(0, "status", &LOGICAL_CLUSTER_STATUS),
    ],
};

static LOGICAL_CLUSTER_SPEC: Message = Message {
    name: "LogicalClusterSpec",
    fields: &[
        boolean(0, "directlyDeletable"),
        message(0, "owner", &LOGICAL_CLUSTER_OWNER),
        Field::new(0, "createdBy", Type::Raw),
        texts(0, "initializers"),
        texts(0, "terminators"),
    ],
};

static LOGICAL_CLUSTER_OWNER: Message = Message {
    name: "LogicalClusterOwner",
    fields: &[
        API_VERSION,
        text(0, "resource"),
        text(0, "name"),
        text(0, "namespace"),
        text(0, "cluster"),
        text(0, "uid"),
    ],
};

static LOGICAL_CLUSTER_STATUS: Message = Message {
    name: "LogicalClusterStatus",
    fields: &[
        text(0, "URL"),
        text(0, "phase"),
        conditions(0, &CONDITION),
        texts(0, "initializers"),
        texts(0, "terminators"),
    ],
};
