//! The form in which the client wants objects: as they are, as Tables, or only their metadata, written as JSON, YAML or
//! protobuf (api-server.md 3.7 - 3.9).
//!
//! JSON is cut from the stored bytes; for the two others every object is parsed. Lists stream, each object unpacked when its
//! turn comes. Of a long one in protobuf, whose length comes first, most objects are encoded twice.

use apiserver_api::Status;
use apiserver_machinery::{
    Resource, encode,
    negotiate::BodyFormat,
    protobuf,
    schema::{Message, meta},
    table,
};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::{
    body::Body,
    compress::{self, Gzip},
    respond,
};
use crate::{
    recent::Frame,
    registry::{Listing, Object, Objects, write_value},
};

pub(crate) use apiserver_machinery::table::TableFormat;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) view: View,
    pub(crate) format: BodyFormat,
}

/// What of an object is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) enum View {
    /// The object.
    Plain,
    /// `as=Table`.
    Table(TableFormat),
    /// `as=PartialObjectMetadata` or `as=PartialObjectMetadataList`.
    Partial(&'static str),
}

impl Form {
    /// The same form with ages as they are at `now`, in Unix seconds.
    pub(crate) fn at(mut self, now: i64) -> Self {
        if let View::Table(format) = &mut self.view {
            format.now = now;
        }
        self
    }

    /// The fields of what is shown, for protobuf; Tables never are.
    fn message(self, resource: &Resource) -> &'static Message {
        match self.view {
            View::Partial(_) => &meta::PARTIAL_OBJECT_METADATA,
            View::Plain | View::Table(_) => resource.schema,
        }
    }

    /// One object as it stands alone.
    fn value(self, object: &Object, with_columns: bool) -> Result<Value, Status> {
        let value = object.value()?;
        Ok(match self.view {
            View::Plain => value,
            View::Partial(version) => table::partial(&value, version),
            View::Table(format) => table::table_of_one(object.resource(), format, &value, with_columns),
        })
    }

    /// Appends one object as it stands alone in an answer or in a watch event.
    fn write_one(self, out: &mut Vec<u8>, object: &Object, with_columns: bool) -> Result<(), Status> {
        match (self.format, self.view) {
            (BodyFormat::Json, View::Plain) => object.write_json(out, true),
            (BodyFormat::Json, View::Partial(version)) => object.write_partial(out, version),
            _ => {
                let value = self.value(object, with_columns)?;
                out.extend(encode::value(self.format, self.message(object.resource()), &value));
            }
        }
        Ok(())
    }

    /// How watches tell frames apart that are the same for all who want this form; Tables show ages and are not.
    pub(crate) fn shared(self, kind: &'static str) -> Option<Frame> {
        let partial = match self.view {
            View::Plain => None,
            View::Partial(version) => Some(version),
            View::Table(_) => return None,
        };
        Some(Frame { kind, partial, format: self.format })
    }

    /// Appends a watch event.
    pub(crate) fn write_event(
        self,
        out: &mut Vec<u8>,
        kind: &str,
        object: &Object,
        with_columns: bool,
    ) -> Result<(), Status> {
        let before = out.len();
        let written = self.frame(out, kind, |out| self.write_one(out, object, with_columns));
        if written.is_err() {
            out.truncate(before);
        }
        written
    }

    /// Appends the event that ends a watch with a refusal.
    pub(crate) fn write_error(self, out: &mut Vec<u8>, status: &Status) {
        let written = self.frame(out, "ERROR", |out| {
            out.extend(encode::status(self.format, status));
            Ok(())
        });
        debug_assert!(written.is_ok());
    }

    /// Appends a frame of a watch.
    fn frame(
        self,
        out: &mut Vec<u8>,
        kind: &str,
        object: impl FnOnce(&mut Vec<u8>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        if self.format == BodyFormat::Protobuf {
            let mut sealed = Vec::new();
            object(&mut sealed)?;
            out.extend(protobuf::watch_frame(kind, &sealed));
            return Ok(());
        }
        out.extend_from_slice(format!("{{\"type\":\"{kind}\",\"object\":").as_bytes());
        object(out)?;
        out.extend_from_slice(b"}\n");
        Ok(())
    }

    /// The media type of a watch.
    pub(crate) fn stream_type(self) -> HeaderValue {
        match self.format {
            BodyFormat::Protobuf => HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch"),
            BodyFormat::Json | BodyFormat::Yaml => respond::JSON,
        }
    }

    /// The answer with one object; packed when it is large and the client takes `gzip`.
    pub(crate) fn one(self, code: StatusCode, object: &Object, gzip: bool) -> Result<Response<Body>, Status> {
        let mut out = Vec::new();
        self.write_one(&mut out, object, true)?;
        Ok(self.whole(code, out, gzip))
    }

    fn whole(self, code: StatusCode, out: impl Into<Bytes>, gzip: bool) -> Response<Body> {
        let (out, media_type) = (out.into(), respond::media_type(self.format));
        if !gzip || out.len() < compress::LEAST {
            return respond::bytes(code, media_type, out);
        }
        let mut packed = respond::bytes(code, media_type, compress::whole(out));
        compress::mark(&mut packed);
        packed
    }

    /// The event of a bookmark.
    pub(crate) fn write_bookmark(
        self,
        out: &mut Vec<u8>,
        resource: &Resource,
        revision: u64,
        initial_end: bool,
        with_columns: bool,
    ) {
        let mut metadata = Map::new();
        metadata.insert("resourceVersion".into(), revision.to_string().into());
        if initial_end {
            metadata.insert("annotations".into(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let (kind, version) = match self.view {
            View::Partial(version) => ("PartialObjectMetadata", format!("meta.k8s.io/{version}")),
            _ => (resource.kind, resource.api_version()),
        };
        let mut bookmark = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        if let View::Table(format) = self.view {
            bookmark = table::table_of_one(resource, format, &bookmark, with_columns);
        }
        let written = self.frame(out, "BOOKMARK", |out| {
            out.extend(encode::value(self.format, self.message(resource), &bookmark));
            Ok(())
        });
        debug_assert!(written.is_ok());
    }

    /// The answer with a list, unpacked and written item by item while it is sent: only one chunk of it exists at a time,
    /// whether the client takes it or not. Compressed when it is large and the client takes `gzip`.
    pub(crate) fn list(self, resource: &'static Resource, listing: Listing, gzip: bool) -> Response<Body> {
        let metadata = list_metadata(&listing);
        let objects = listing.into_objects();
        match self.format {
            BodyFormat::Protobuf => {
                let message = self.message(resource);
                let (kind, version, _) = self.list_kind(resource);
                let items = objects.map(move |object| protobuf::encode(message, &object.shown()));
                let pieces = protobuf::list((&kind, &version), &metadata, items);
                self.pieces(pieces.map(Bytes::from), gzip)
            }
            BodyFormat::Json | BodyFormat::Yaml => {
                let head = Some(self.list_head(resource, metadata, objects.is_empty()));
                self.pieces(List { form: self, resource, head, objects, first: true }, gzip)
            }
        }
    }

    /// The answer of these pieces, one behind the other.
    fn pieces(self, mut pieces: impl Iterator<Item = Bytes> + Send + 'static, gzip: bool) -> Response<Body> {
        let (mut ready, mut size) = (Vec::new(), 0);
        while (size < compress::LEAST || ready.len() < 2)
            && let Some(piece) = pieces.next()
        {
            size += piece.len();
            ready.push(piece);
        }
        // Most lists fit into one piece: these have a length and need no stream.
        if ready.len() <= 1 {
            return self.whole(StatusCode::OK, ready.pop().unwrap_or_default(), gzip);
        }
        let is_packed = gzip && size >= compress::LEAST;
        let pieces = ready.into_iter().chain(pieces);
        let mut response = if is_packed {
            let mut packed = Response::new(Body::stream(futures_util::stream::iter(Gzip::new(pieces))));
            compress::mark(&mut packed);
            packed
        } else {
            Response::new(Body::stream(futures_util::stream::iter(pieces)))
        };
        response.headers_mut().insert(http::header::CONTENT_TYPE, respond::media_type(self.format));
        response
    }

    /// Kind and version of a list, and what its items are called.
    fn list_kind(self, resource: &Resource) -> (String, String, &'static str) {
        match self.view {
            View::Plain => (resource.list_kind(), resource.api_version(), "items"),
            View::Partial(version) => {
                ("PartialObjectMetadataList".to_owned(), format!("meta.k8s.io/{version}"), "items")
            }
            View::Table(format) => ("Table".to_owned(), format!("meta.k8s.io/{}", format.version), "rows"),
        }
    }

    /// Everything in front of the first item.
    fn list_head(self, resource: &Resource, metadata: Value, is_empty: bool) -> Vec<u8> {
        let (kind, version, items) = self.list_kind(resource);
        if self.format == BodyFormat::Yaml {
            let mut head = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
            if let (View::Table(_), Some(members)) = (self.view, head.as_object_mut()) {
                members.insert("columnDefinitions".into(), table::column_definitions(resource));
            }
            let mut out = encode::value(self.format, resource.schema, &head);
            out.extend_from_slice(format!("{items}:{}\n", if is_empty { " []" } else { "" }).as_bytes());
            return out;
        }
        let mut out =
            format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},").into_bytes();
        if let View::Table(_) = self.view {
            out.extend_from_slice(format!("\"columnDefinitions\":{},", table::column_definitions(resource)).as_bytes());
        }
        out.extend_from_slice(format!("\"{items}\":[").as_bytes());
        out
    }
}

fn list_metadata(page: &Listing) -> Value {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let (Some(token), Some(fields)) = (&page.continue_token, metadata.as_object_mut()) {
        fields.insert("continue".into(), token.as_str().into());
        if let Some(remaining) = page.remaining {
            fields.insert("remainingItemCount".into(), remaining.into());
        }
    }
    metadata
}

/// Items of lists of built-in kinds do not say what they are, those of custom resources do.
fn untyped(resource: &Resource, mut value: Value) -> Value {
    if let Some(members) = value.as_object_mut().filter(|_| !resource.is_copy) {
        members.remove("kind");
        members.remove("apiVersion");
    }
    value
}

/// A list in JSON or YAML that is being written.
struct List {
    form: Form,
    resource: &'static Resource,
    head: Option<Vec<u8>>,
    objects: Objects,
    first: bool,
}

/// Bytes after which a chunk is sent.
const CHUNK: usize = 64 * 1024;

impl List {
    fn write_json(&mut self, out: &mut Vec<u8>, object: &Object) {
        if !std::mem::take(&mut self.first) {
            out.push(b',');
        }
        match self.form.view {
            // Items of lists of built-in kinds do not say what they are, those of custom resources do.
            View::Plain => object.write_json(out, self.resource.is_copy),
            View::Partial(version) => object.write_partial(out, version),
            View::Table(format) => {
                let value = object.value().unwrap_or(Value::Null);
                write_value(out, &table::row(self.resource, format, &value));
            }
        }
    }

    /// A list of one: such lists, one behind the other, are a list of all.
    fn write_yaml(&self, out: &mut Vec<u8>, object: &Object) {
        let value = object.shown();
        let item = match self.form.view {
            View::Plain => untyped(self.resource, value),
            View::Partial(version) => table::partial(&value, version),
            View::Table(format) => table::row(self.resource, format, &value),
        };
        out.extend(encode::value(BodyFormat::Yaml, self.resource.schema, &json!([item])));
    }
}

impl Iterator for List {
    type Item = Bytes;

    /// The next chunk; the last one ends the list.
    fn next(&mut self) -> Option<Bytes> {
        if self.head.is_none() && self.objects.is_empty() {
            return None;
        }
        let mut out = self.head.take().unwrap_or_default();
        let is_json = self.form.format == BodyFormat::Json;
        while out.len() < CHUNK
            && let Some(object) = self.objects.next()
        {
            if is_json { self.write_json(&mut out, &object) } else { self.write_yaml(&mut out, &object) }
        }
        if is_json && self.objects.is_empty() {
            out.extend_from_slice(b"]}\n");
        }
        Some(out.into())
    }
}
