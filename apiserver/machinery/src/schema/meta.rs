//! Structs of `meta/v1`.

use super::{Field, Merge, Message, Type, boolean, int32, int64, message, text, texts, time};

/// `ObjectMeta`.
pub static OBJECT_META: Message = Message {
    name: "ObjectMeta",
    fields: &[
        text(1, "name"),
        text(2, "generateName"),
        text(3, "namespace"),
        text(4, "selfLink"),
        text(5, "uid"),
        text(6, "resourceVersion"),
        int64(7, "generation"),
        time(8, "creationTimestamp"),
        time(9, "deletionTimestamp"),
        int64(10, "deletionGracePeriodSeconds").pointer(),
        text(11, "labels").map(),
        text(12, "annotations").map(),
        message(13, "ownerReferences", &OWNER_REFERENCE).list().merge(Merge::ByKey("uid")).atomic(),
        texts(14, "finalizers").merge(Merge::Set),
        message(17, "managedFields", &MANAGED_FIELDS_ENTRY).list(),
    ],
};

/// `OwnerReference`.
pub static OWNER_REFERENCE: Message = Message {
    name: "OwnerReference",
    fields: &[
        text(5, "apiVersion"),
        text(1, "kind"),
        text(3, "name"),
        text(4, "uid"),
        boolean(6, "controller").pointer(),
        boolean(7, "blockOwnerDeletion").pointer(),
    ],
};

static MANAGED_FIELDS_ENTRY: Message = Message {
    name: "ManagedFieldsEntry",
    fields: &[
        text(1, "manager"),
        text(2, "operation"),
        text(3, "apiVersion"),
        time(4, "time"),
        text(6, "fieldsType"),
        Field::new(7, "fieldsV1", Type::Raw),
        text(8, "subresource"),
    ],
};

/// `DeleteOptions`.
pub static DELETE_OPTIONS: Message = Message {
    name: "DeleteOptions",
    fields: &[
        super::KIND,
        super::API_VERSION,
        int64(1, "gracePeriodSeconds").pointer(),
        message(2, "preconditions", &PRECONDITIONS),
        boolean(3, "orphanDependents").pointer(),
        text(4, "propagationPolicy").pointer(),
        texts(5, "dryRun"),
        boolean(6, "ignoreStoreReadErrorWithClusterBreakingPotential").pointer(),
    ],
};

static PRECONDITIONS: Message =
    Message { name: "Preconditions", fields: &[text(1, "uid").pointer(), text(2, "resourceVersion").pointer()] };

/// `LabelSelector`.
pub static LABEL_SELECTOR: Message = Message {
    name: "LabelSelector",
    fields: &[text(1, "matchLabels").map(), message(2, "matchExpressions", &LABEL_SELECTOR_REQUIREMENT).list()],
};

static LABEL_SELECTOR_REQUIREMENT: Message =
    Message { name: "LabelSelectorRequirement", fields: &[text(1, "key"), text(2, "operator"), texts(3, "values")] };

/// `ListMeta`.
pub static LIST_META: Message = Message {
    name: "ListMeta",
    fields: &[
        text(1, "selfLink"),
        text(2, "resourceVersion"),
        text(3, "continue"),
        int64(4, "remainingItemCount").pointer(),
    ],
};

/// `PartialObjectMetadata`.
pub static PARTIAL_OBJECT_METADATA: Message =
    Message { name: "PartialObjectMetadata", fields: &[super::KIND, super::API_VERSION, super::METADATA] };

/// `Status`.
pub static STATUS: Message = Message {
    name: "Status",
    fields: &[
        super::KIND,
        super::API_VERSION,
        message(1, "metadata", &LIST_META),
        text(2, "status"),
        text(3, "message"),
        text(4, "reason"),
        message(5, "details", &STATUS_DETAILS).pointer(),
        int32(6, "code"),
    ],
};

static STATUS_DETAILS: Message = Message {
    name: "StatusDetails",
    fields: &[
        text(1, "name"),
        text(2, "group"),
        text(3, "kind"),
        message(4, "causes", &STATUS_CAUSE).list(),
        int32(5, "retryAfterSeconds"),
        text(6, "uid"),
    ],
};

static STATUS_CAUSE: Message =
    Message { name: "StatusCause", fields: &[text(1, "reason"), text(2, "message"), text(3, "field")] };
