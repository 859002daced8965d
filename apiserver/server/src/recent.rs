//! What was made of recent changes, for all who watch: a change that a thousand watches are told is parsed once for
//! their selectors and written once for their clients.
//!
//! Bounded in bytes; what has been pushed out is made again. A change is known by key, revision and the store's epoch,
//! and what is made of it depends on nothing else.

use std::sync::Arc;

use apiserver_api::Status;
use apiserver_machinery::negotiate::BodyFormat;
use apiserver_storage::Key;
use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};
use serde_json::Value;

use crate::registry::Object;

/// Most bytes of frames, and of the stored bytes of what was parsed (parsed it takes about ten times as many).
const FRAMES_BYTES_MAX: u64 = 4 << 20;
const PARSED_BYTES_MAX: u64 = 1 << 20;
/// An estimate of how many there are then.
const OBJECTS: usize = 1000;

/// An object at a revision, and group and version of its resource: what is stored once may be shown in several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Id {
    epoch: u64,
    revision: u64,
    key: Key,
    group: &'static str,
    version: &'static str,
}

/// An event in one form: its type, the view's version unless it is the whole object, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub(crate) kind: &'static str,
    pub(crate) partial: Option<&'static str>,
    pub(crate) format: BodyFormat,
}

/// See the module.
pub(crate) struct Recent {
    frames: Cache<(Id, Frame), Bytes, FrameBytes>,
    parsed: Cache<Id, (u64, Arc<Value>), ParsedBytes>,
}

#[derive(Clone)]
struct FrameBytes;

impl Weighter<(Id, Frame), Bytes> for FrameBytes {
    fn weight(&self, (id, _): &(Id, Frame), frame: &Bytes) -> u64 {
        (id.key.len() + frame.len()) as u64
    }
}

#[derive(Clone)]
struct ParsedBytes;

impl Weighter<Id, (u64, Arc<Value>)> for ParsedBytes {
    fn weight(&self, id: &Id, (bytes, _): &(u64, Arc<Value>)) -> u64 {
        id.key.len() as u64 + bytes
    }
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            frames: Cache::with_weighter(OBJECTS, FRAMES_BYTES_MAX, FrameBytes),
            parsed: Cache::with_weighter(OBJECTS, PARSED_BYTES_MAX, ParsedBytes),
        }
    }
}

impl Recent {
    /// The frame of an event of this epoch, written unless somebody has.
    pub(crate) fn frame(
        &self,
        epoch: u64,
        object: &Object,
        frame: Frame,
        write: impl FnOnce() -> Result<Bytes, Status>,
    ) -> Result<Bytes, Status> {
        self.frames.get_or_insert_with(&(id(epoch, object), frame), write)
    }

    /// The stored bytes of an object of this epoch as they are parsed.
    ///
    /// # Errors
    /// 500 when they are no JSON.
    pub(crate) fn parsed(&self, epoch: u64, object: &Object) -> Result<Arc<Value>, Status> {
        let parse = || object.stored().map(|value| (object.stored_bytes() as u64, Arc::new(value)));
        self.parsed.get_or_insert_with(&id(epoch, object), parse).map(|(_, value)| value)
    }
}

fn id(epoch: u64, object: &Object) -> Id {
    let (group, version) = (object.resource().group, object.resource().version);
    Id { epoch, revision: object.revision(), key: object.storage_key().clone(), group, version }
}

#[cfg(test)]
mod tests {
    use apiserver_machinery::builtin;
    use apiserver_storage::KeyValue;

    use super::*;

    fn object(name: &str, revision: u64, value: &'static str) -> Object {
        let key = format!("/registry/core/configmaps/root/default/{name}").into();
        let kv = KeyValue { key, value: value.into(), create_revision: 1, mod_revision: revision };
        Object::new(builtin::find("", "v1", "configmaps").unwrap(), "/registry/core/configmaps/".len(), kv)
    }

    /// Which of the writers was asked, for each of these in turn.
    #[test]
    fn a_frame_is_written_once_for_each_form() {
        let recent = Recent::default();
        let whole = Frame { kind: "MODIFIED", partial: None, format: BodyFormat::Json };
        let cases = [
            ("a", 5, whole.clone(), "1"),
            ("a", 5, whole.clone(), "1"),
            ("a", 6, whole.clone(), "3"),
            ("b", 5, whole.clone(), "4"),
            ("a", 5, Frame { kind: "ADDED", ..whole.clone() }, "5"),
            ("a", 5, Frame { partial: Some("v1"), ..whole.clone() }, "6"),
            ("a", 5, Frame { format: BodyFormat::Protobuf, ..whole.clone() }, "7"),
            ("a", 5, whole.clone(), "1"),
        ];
        for (n, (name, revision, frame, expected)) in cases.into_iter().enumerate() {
            let written = recent.frame(0, &object(name, revision, "{}"), frame, || Ok((n + 1).to_string().into()));
            assert_eq!(written.unwrap(), expected);
        }
        let refused = || Err(Status::internal_error("no"));
        recent.frame(0, &object("c", 5, "{}"), whole.clone(), refused).unwrap_err();
        assert_eq!(recent.frame(0, &object("c", 5, "{}"), whole.clone(), || Ok("c".into())).unwrap(), "c");
        // A store that was restored gives the revision a second time.
        assert_eq!(recent.frame(1, &object("c", 5, "{}"), whole, || Ok("d".into())).unwrap(), "d");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let recent = Recent::default();
        let frame = Frame { kind: "ADDED", partial: None, format: BodyFormat::Json };
        for revision in 0..2000 {
            let write = || Ok(Bytes::from(vec![0; 10_000]));
            recent.frame(0, &object("a", revision, "{}"), frame.clone(), write).unwrap();
        }
        assert!(recent.frames.weight() <= FRAMES_BYTES_MAX, "{}", recent.frames.weight());
        assert!(recent.frames.weight() > FRAMES_BYTES_MAX / 4, "{}", recent.frames.weight());
    }

    #[test]
    fn an_object_is_parsed_once() {
        let recent = Recent::default();
        let [first, second] = [(); 2].map(|()| recent.parsed(0, &object("a", 5, r#"{"a":1}"#)).unwrap());
        assert!(Arc::ptr_eq(&first, &second) && first["a"] == 1);
        assert_eq!(recent.parsed(1, &object("a", 5, r#"{"a":2}"#)).unwrap()["a"], 2);
        recent.parsed(0, &object("a", 6, "{")).unwrap_err();
    }
}
