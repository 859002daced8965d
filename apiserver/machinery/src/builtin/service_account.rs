//! ServiceAccount (api-server.md 5.4).

use serde_json::json;

use super::{VERBS, columns, prepare_nothing, validate_nothing};
use crate::{
    resource::{Column, NameRule, Resource, Scope},
    schema,
};

const COLUMNS: &[Column] =
    &[columns::NAME, columns::string("Secrets", |o, _| json!(columns::count(o, "secrets"))), columns::AGE];

pub(super) const SERVICE_ACCOUNTS: Resource = Resource {
    group: "",
    version: "v1",
    plural: "serviceaccounts",
    singular: "serviceaccount",
    kind: "ServiceAccount",
    short_names: &["sa"],
    categories: &[],
    scope: Scope::Namespaced,
    columns: COLUMNS,
    verbs: VERBS,
    subresources: &[],
    generation: false,
    create_on_update: false,
    name_rule: NameRule::Subdomain,
    schema: &schema::core::SERVICE_ACCOUNT,
    protobuf: true,
    selectable: &[],
    prepare: prepare_nothing,
    validate: validate_nothing,
    immortal: &[],
    ttl: None,
    is_copy: false,
    view: None,
    mandatory: || &[],
};
