//! The stored form of an object, and how it leaves the store without being parsed.
//!
//! Stored bytes are always written by [`encode`]: compact JSON that begins with
//! `{"kind":K,"apiVersion":V,"metadata":{`, with `annotations` as the first member of the metadata when there
//! are any. What the key and the store know already is never stored: `metadata.resourceVersion` and the
//! annotations `kcp.io/cluster` and, of a copy, `kcp.io/shard` (kcp.md 1.3). All are spliced in behind the fixed beginning on every way out, so
//! rendering costs one copy of the bytes and no parse. Bytes that begin otherwise (a foreign writer) are parsed.

use std::fmt;

use apiserver_api::{
    ClusterName, Status,
    marks::{CLUSTER, SHARD},
};
use apiserver_machinery::{Resource, selector::Selector};
use apiserver_storage::{Key, KeyValue, labels::Labels};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::errors;

/// One object at one revision: a cheap handle on its stored bytes. Parsed only on request.
#[derive(Clone)]
pub struct Object {
    resource: &'static Resource,
    kv: KeyValue,
    /// Bytes of the key in front of the cluster, or in front of the shard of a copy.
    place_at: usize,
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.kv.key, self.kv.mod_revision)
    }
}

impl Object {
    /// Wraps a stored value; `place_at` is the length of the key in front of the cluster, or of the shard of a copy.
    pub(crate) fn new(resource: &'static Resource, place_at: usize, kv: KeyValue) -> Self {
        Self { resource, kv, place_at }
    }

    /// Its resource.
    pub fn resource(&self) -> &'static Resource {
        self.resource
    }

    /// Revision of its last change: the `resourceVersion`.
    pub fn revision(&self) -> u64 {
        self.kv.mod_revision
    }

    /// Revision of its creation.
    pub(super) fn created(&self) -> u64 {
        self.kv.create_revision
    }

    /// Whether the store has it. What every cluster has is there without that (`mandatory`).
    pub(super) fn is_stored(&self) -> bool {
        self.kv.create_revision > 0
    }

    /// The storage key.
    pub(crate) fn storage_key(&self) -> &Key {
        &self.kv.key
    }

    /// Number of its stored bytes.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.kv.value.len()
    }

    /// The shard whose copy it is; `None` for what is no copy.
    pub fn shard(&self) -> Option<&str> {
        self.place().0
    }

    /// The name of its logical cluster.
    pub fn cluster(&self) -> &str {
        self.segments().0
    }

    /// Its namespace; empty for cluster-scoped resources.
    pub fn namespace(&self) -> &str {
        self.segments().1
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.segments().2
    }

    /// Where it is, as an owned key.
    ///
    /// # Panics
    /// Never: every key was made from a [`ClusterName`].
    pub fn key(&self) -> super::ObjectKey {
        let (cluster, namespace, name) = self.segments();
        let cluster: ClusterName = cluster.parse().expect("storage keys are made from cluster names");
        super::ObjectKey { cluster, namespace: namespace.into(), name: name.into() }
    }

    /// The shard, if it is a copy, and the key behind it.
    fn place(&self) -> (Option<&str>, &str) {
        let tail = self.kv.key.get(self.place_at..).unwrap_or_default();
        match tail.split_once('/') {
            Some((shard, rest)) if self.resource.is_copy => (Some(shard), rest),
            _ => (None, tail),
        }
    }

    fn segments(&self) -> (&str, &str, &str) {
        let (_, tail) = self.place();
        let (cluster, rest) = tail.split_once('/').unwrap_or((tail, ""));
        let (namespace, name) = rest.split_once('/').unwrap_or(("", rest));
        (cluster, namespace, name)
    }

    /// The same object with another revision: a DELETED event carries the revision of the deletion.
    pub(crate) fn at_revision(mut self, revision: u64) -> Self {
        self.kv.mod_revision = revision;
        self
    }

    /// The object as clients see it: parsed, with kind, apiVersion, resourceVersion and the cluster annotation.
    ///
    /// # Errors
    /// 500 when the stored bytes are no JSON object.
    pub fn value(&self) -> Result<Value, Status> {
        let mut value = self.stored()?;
        let Some(fields) = value.as_object_mut() else {
            return Err(errors::internal("stored bytes are no JSON object"));
        };
        fields.insert("kind".into(), self.resource.kind.into());
        fields.insert("apiVersion".into(), self.resource.api_version().into());
        set_read_fields(metadata_mut(fields), self.shard(), self.cluster(), self.kv.mod_revision);
        Ok(value)
    }

    /// The same; bytes that are no object at all cannot be shown, and their place is shown instead, so that a list stays a
    /// list.
    pub(crate) fn shown(&self) -> Value {
        self.value().unwrap_or_else(|_| json!({"metadata": {"name": self.name(), "namespace": self.namespace()}}))
    }

    /// Whether a selector selects it. Labels, name and namespace are looked at where they stand; for other fields the
    /// object is parsed.
    ///
    /// # Errors
    /// 500 when it had to be parsed and is no JSON.
    pub fn matches(&self, selector: &Selector) -> Result<bool, Status> {
        match self.matches_unparsed(selector) {
            Some(matches) => Ok(matches),
            None => Ok(selector.matches(&self.stored()?)),
        }
    }

    /// The same as far as it can be said without parsing.
    pub(super) fn matches_unparsed(&self, selector: &Selector) -> Option<bool> {
        if !selector.labels.is_empty() {
            let labels = Labels::of(&self.kv.value)?;
            if !selector.labels.matches_labels(labels.iter()) {
                return Some(false);
            }
        }
        if selector.fields.is_empty() {
            Some(true)
        } else {
            selector.fields.matches_place(self.name(), self.namespace())
        }
    }

    /// The same object with other bytes, which are not stored: revision 0 stands for no resourceVersion.
    pub(super) fn unstored(&self, value: &Value) -> Self {
        self.with(encode(self.resource, value), self.kv.mod_revision)
    }

    /// The same object as it was stored by a later write.
    pub(super) fn with(&self, value: Bytes, revision: u64) -> Self {
        let create_revision = if self.is_stored() { self.kv.create_revision } else { revision };
        let kv = KeyValue { value, create_revision, mod_revision: revision, key: self.kv.key.clone() };
        Self { kv, ..*self }
    }

    /// The stored bytes, parsed, without what [`Object::value`] adds.
    pub(crate) fn stored(&self) -> Result<Value, Status> {
        let mut value = self.parse()?;
        self.resource.view.iter().for_each(|view| (view.show)(&mut value));
        Ok(value)
    }

    /// What `T` names of the stored bytes; the rest is only skipped. Kind, apiVersion, resourceVersion and the cluster
    /// annotation are not among them.
    ///
    /// # Errors
    /// 500 when the stored bytes are no such object.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Status> {
        serde_json::from_slice(&self.kv.value)
            .map_err(|e| errors::internal(format!("stored object {} cannot be read: {e}", self.kv.key)))
    }

    /// Appends the object as JSON. `typed` = with `kind` and `apiVersion` (single objects and events have them,
    /// items of lists of built-in kinds do not, api-server.md 3.1).
    pub fn write_json(&self, out: &mut Vec<u8>, typed: bool) {
        let bytes = &self.kv.value[..];
        let Some(at) = metadata_start(bytes).filter(|_| self.resource.view.is_none()) else {
            return self.write_parsed(out, typed);
        };
        let (head, body) = bytes.split_at(at);
        out.reserve(bytes.len() + 96);
        if typed {
            out.extend_from_slice(head)
        } else {
            out.extend_from_slice(METADATA)
        };
        self.write_read_fields(out, body);
    }

    /// The bytes behind `"metadata":{`, with resourceVersion and cluster annotation put in front of them.
    fn write_read_fields(&self, out: &mut Vec<u8>, body: &[u8]) {
        let version = if self.kv.mod_revision == 0 {
            String::new()
        } else {
            format!("\"resourceVersion\":\"{}\",", self.kv.mod_revision)
        };
        out.extend_from_slice(format!("{version}\"annotations\":{{\"{CLUSTER}\":\"{}\"", self.cluster()).as_bytes());
        if let Some(shard) = self.shard() {
            out.extend_from_slice(format!(",\"{SHARD}\":\"{shard}\"").as_bytes());
        }
        match body.strip_prefix(ANNOTATIONS) {
            Some(rest) => {
                // Never empty: `encode` drops an empty map.
                out.push(b',');
                out.extend_from_slice(rest);
            }
            None => {
                out.push(b'}');
                if !matches!(body.first(), None | Some(b'}')) {
                    out.push(b',');
                }
                out.extend_from_slice(body);
            }
        }
    }

    fn write_parsed(&self, out: &mut Vec<u8>, typed: bool) {
        let mut value = self.shown();
        if let (false, Some(fields)) = (typed, value.as_object_mut()) {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        write_value(out, &value);
    }

    /// Appends only the metadata, as a `PartialObjectMetadata` of `meta.k8s.io/<version>`.
    pub fn write_partial(&self, out: &mut Vec<u8>, version: &str) {
        let head =
            format!("{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/{version}\",\"metadata\":{{");
        let bytes = &self.kv.value[..];
        let metadata =
            metadata_start(bytes).and_then(|at| bytes.get(at..)).and_then(|body| body.get(..object_end(body)?));
        match metadata {
            Some(body) => {
                out.extend_from_slice(head.as_bytes());
                self.write_read_fields(out, body);
                out.extend_from_slice(b"}}");
            }
            None => {
                out.extend_from_slice(head.as_bytes());
                out.pop();
                let metadata = self
                    .value()
                    .ok()
                    .and_then(|mut v| v.get_mut("metadata").map(Value::take))
                    .unwrap_or_else(|| json!({"name": self.name()}));
                write_value(out, &metadata);
                out.push(b'}');
            }
        }
    }

    /// The object as JSON bytes, with kind and apiVersion.
    pub fn to_json(&self) -> Bytes {
        let mut out = Vec::new();
        self.write_json(&mut out, true);
        out.into()
    }
}

const METADATA: &[u8] = b"{\"metadata\":{";
const ANNOTATIONS: &[u8] = b"\"annotations\":{";

/// Offset behind `"metadata":{` when the bytes have the form that [`encode`] writes.
fn metadata_start(bytes: &[u8]) -> Option<usize> {
    // kind and apiVersion contain no quote, so the first occurrence within the short head is the real one.
    let head = bytes.get(..bytes.len().min(256))?;
    head.starts_with(b"{\"kind\":\"").then_some(())?;
    let inner = METADATA.get(1..)?;
    head.windows(inner.len()).position(|w| w == inner).map(|at| at + inner.len())
}

/// Offset of the `}` that ends an object whose opening brace was just passed.
fn object_end(body: &[u8]) -> Option<usize> {
    let (mut depth, mut in_string, mut escaped) = (1_u32, false, false);
    for (at, byte) in body.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn metadata_mut(fields: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
    if !metadata.is_object() {
        *metadata = json!({});
    }
    metadata.as_object_mut().expect("made an object above")
}

fn set_read_fields(metadata: &mut Map<String, Value>, shard: Option<&str>, cluster: &str, revision: u64) {
    if revision > 0 {
        metadata.insert("resourceVersion".into(), revision.to_string().into());
    }
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if !annotations.is_object() {
        *annotations = json!({});
    }
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(CLUSTER.into(), cluster.into());
        if let Some(shard) = shard {
            annotations.insert(SHARD.into(), shard.into());
        }
    }
}

/// Removes what is never stored: resourceVersion, selfLink, the annotations that tell the place, and the map of
/// annotations when nothing else was in it.
pub(crate) fn strip(resource: &Resource, value: &mut Value) {
    let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    metadata.remove("resourceVersion");
    metadata.remove("selfLink");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(CLUSTER);
        if resource.is_copy {
            annotations.remove(SHARD);
        }
    }
    if metadata.get("annotations").is_some_and(|a| a.is_null() || a.as_object().is_some_and(Map::is_empty)) {
        metadata.remove("annotations");
    }
}

/// The stored bytes of an object that went through [`strip`].
pub(crate) fn encode(resource: &Resource, value: &Value) -> Bytes {
    let mut converted;
    let value = match resource.view {
        Some(view) => {
            converted = value.clone();
            (view.store)(&mut converted);
            &converted
        }
        None => value,
    };
    let version = match resource.stored_as() {
        ("", version) => version.to_owned(),
        (group, version) => format!("{group}/{version}"),
    };
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(
        format!("{{\"kind\":\"{}\",\"apiVersion\":\"{version}\",\"metadata\":{{", resource.kind).as_bytes(),
    );
    let empty = Map::new();
    let metadata = value.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let first = metadata.get_key_value("annotations");
    let others = metadata.iter().filter(|(k, _)| *k != "annotations");
    write_members(&mut out, first.into_iter().chain(others));
    out.push(b'}');
    for (key, member) in value.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "kind" | "apiVersion" | "metadata") {
            out.push(b',');
            write_members(&mut out, std::iter::once((key, member)));
        }
    }
    out.push(b'}');
    out.into()
}

fn write_members<'a>(out: &mut Vec<u8>, members: impl Iterator<Item = (&'a String, &'a Value)>) {
    for (n, (key, member)) in members.enumerate() {
        if n > 0 {
            out.push(b',');
        }
        serde_json::to_writer(&mut *out, key).expect("a string is always JSON, a Vec takes every write");
        out.push(b':');
        write_value(out, member);
    }
}

/// Appends any value.
pub(crate) fn write_value(out: &mut Vec<u8>, value: &Value) {
    serde_json::to_writer(out, value).expect("a Value is always JSON, a Vec takes every write");
}

#[cfg(test)]
mod tests {
    use apiserver_machinery::builtin;

    use super::*;

    fn stored(bytes: &[u8]) -> Object {
        let maps = builtin::find("", "v1", "configmaps").unwrap();
        let key = "/registry/core/configmaps/root/ns/a";
        let kv =
            KeyValue { key: key.into(), value: Bytes::copy_from_slice(bytes), create_revision: 3, mod_revision: 7 };
        Object::new(maps, "/registry/core/configmaps/".len(), kv)
    }

    fn written(write: impl Fn(&mut Vec<u8>)) -> Value {
        let mut out = Vec::new();
        write(&mut out);
        serde_json::from_slice(&out).unwrap()
    }

    /// Spliced and parsed renderings of the same object agree, whatever stands in its metadata.
    #[test]
    fn splicing_is_parsing() {
        let maps = builtin::find("", "v1", "configmaps").unwrap();
        for metadata in [
            json!({}),
            json!({"name": "a"}),
            json!({"annotations": {"a": "\"metadata\":{", "kcp.io/cluster": "forged"}, "name": "a"}),
            json!({"annotations": {"kcp.io/cluster": "forged"}, "resourceVersion": "99"}),
            json!({"annotations": {}, "labels": {"a": "}\\\"{"}}),
            json!({"finalizers": ["a", "b"], "annotations": {"x": "{\"annotations\":{"}}),
        ] {
            let mut value = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"k": "}\"metadata\":{"}});
            strip(maps, &mut value);
            let fast = stored(&encode(maps, &value));
            assert!(metadata_start(&fast.kv.value).is_some());
            // The same members in another order: a foreign writer's.
            let slow = stored(value.to_string().as_bytes());
            assert!(metadata_start(&slow.kv.value).is_none());
            for typed in [true, false] {
                assert_eq!(written(|out| fast.write_json(out, typed)), written(|out| slow.write_json(out, typed)));
            }
            assert_eq!(written(|out| fast.write_partial(out, "v1")), written(|out| slow.write_partial(out, "v1")));
            let shown = written(|out| fast.write_json(out, true));
            assert_eq!(shown, fast.value().unwrap());
            assert_eq!(shown["metadata"]["annotations"][CLUSTER], "root");
            assert_eq!(shown["metadata"]["resourceVersion"], "7");
            assert_eq!(fast.stored().unwrap(), value);
        }
    }

    #[test]
    fn the_key_says_where_it_is() {
        let object = stored(b"{}");
        assert_eq!((object.cluster(), object.namespace(), object.name()), ("root", "ns", "a"));
        assert_eq!(object.key(), super::super::ObjectKey::new(&"root".parse().unwrap(), "ns", "a"));
    }

    #[test]
    fn broken_bytes_do_not_break_a_list() {
        let object = stored(b"{\"kind\":\"x");
        assert!(object.value().is_err());
        assert_eq!(written(|out| object.write_json(out, false))["metadata"]["name"], "a");
    }
}
