//! The form in which the client wants objects: as they are, as Tables, or only their metadata
//! (api-server.md 3.7 - 3.9).

use apiserver_api::Status;
use apiserver_machinery::{Resource, table};
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::{
    body::Body,
    compress::{self, Gzip},
    respond,
};
use crate::registry::{Object, Page, write_value};

pub(crate) use apiserver_machinery::table::TableFormat;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// JSON of the object.
    Plain,
    /// `as=Table`.
    Table(TableFormat),
    /// `as=PartialObjectMetadata` or `as=PartialObjectMetadataList`.
    Partial(&'static str),
}

impl Form {
    /// Appends one object as it stands alone in an answer or in a watch event.
    pub(crate) fn write_one(self, out: &mut Vec<u8>, object: &Object, with_columns: bool) -> Result<(), Status> {
        match self {
            Self::Plain => object.write_json(out, true),
            Self::Partial(version) => object.write_partial(out, version),
            Self::Table(format) => {
                write_value(out, &table::table_of_one(object.resource(), format, &object.value()?, with_columns))
            }
        }
        Ok(())
    }

    /// The answer with one object; packed when it is large and the client takes `gzip`.
    pub(crate) fn one(self, code: StatusCode, object: &Object, gzip: bool) -> Result<Response<Body>, Status> {
        let mut out = Vec::new();
        self.write_one(&mut out, object, true)?;
        if !gzip || out.len() < compress::LEAST {
            return Ok(respond::bytes(code, respond::JSON, out));
        }
        let mut packed = respond::bytes(code, respond::JSON, compress::whole(out.into()));
        compress::mark(&mut packed);
        Ok(packed)
    }

    /// The object of a bookmark.
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
        let (kind, version) = match self {
            Self::Partial(version) => ("PartialObjectMetadata", format!("meta.k8s.io/{version}")),
            _ => (resource.kind, resource.api_version()),
        };
        let bookmark = json!({"kind": kind, "apiVersion": version, "metadata": metadata});
        match self {
            Self::Table(format) => write_value(out, &table::table_of_one(resource, format, &bookmark, with_columns)),
            _ => write_value(out, &bookmark),
        }
    }

    /// The answer with a list, written item by item while it is sent: beside the stored bytes, which the items
    /// share with the store, only one chunk exists at a time. Packed when it is large and the client takes `gzip`.
    pub(crate) fn list(self, resource: &'static Resource, page: Page, gzip: bool) -> Response<Body> {
        let list = List {
            form: self,
            resource,
            head: Some(self.list_head(resource, &page)),
            items: page.items.into_iter(),
            first: true,
        };
        let mut list = list;
        let first = list.chunk().unwrap_or_default();
        // Most lists fit into one chunk: these have a length and need no stream.
        let Some(second) = list.chunk() else { return respond::bytes(StatusCode::OK, respond::JSON, first) };
        let is_packed = gzip && first.len() + second.len() >= compress::LEAST;
        let chunks = [first, second].into_iter().chain(list);
        let mut response = if is_packed {
            let mut packed = Response::new(Body::stream(futures_util::stream::iter(Gzip::new(chunks))));
            compress::mark(&mut packed);
            packed
        } else {
            Response::new(Body::stream(futures_util::stream::iter(chunks)))
        };
        response.headers_mut().insert(http::header::CONTENT_TYPE, respond::JSON);
        response
    }

    /// Everything in front of the first item.
    fn list_head(self, resource: &Resource, page: &Page) -> Vec<u8> {
        let mut metadata = json!({"resourceVersion": page.revision.to_string()});
        if let (Some(token), Some(fields)) = (&page.continue_token, metadata.as_object_mut()) {
            fields.insert("continue".into(), token.as_str().into());
            if let Some(remaining) = page.remaining {
                fields.insert("remainingItemCount".into(), remaining.into());
            }
        }
        let (kind, version, items) = match self {
            Self::Plain => (resource.list_kind(), resource.api_version(), "items"),
            Self::Partial(version) => {
                ("PartialObjectMetadataList".to_owned(), format!("meta.k8s.io/{version}"), "items")
            }
            Self::Table(format) => ("Table".to_owned(), format!("meta.k8s.io/{}", format.version), "rows"),
        };
        let mut out =
            format!("{{\"kind\":\"{kind}\",\"apiVersion\":\"{version}\",\"metadata\":{metadata},").into_bytes();
        if let Self::Table(_) = self {
            out.extend_from_slice(format!("\"columnDefinitions\":{},", table::column_definitions(resource)).as_bytes());
        }
        out.extend_from_slice(format!("\"{items}\":[").as_bytes());
        out
    }
}

/// A list being written.
struct List {
    form: Form,
    resource: &'static Resource,
    head: Option<Vec<u8>>,
    items: std::vec::IntoIter<Object>,
    first: bool,
}

/// Bytes after which a chunk is sent.
const CHUNK: usize = 64 * 1024;

impl List {
    /// The next chunk; the last one ends the list.
    fn chunk(&mut self) -> Option<Bytes> {
        if self.head.is_none() && self.items.as_slice().is_empty() {
            return None;
        }
        let mut out = self.head.take().unwrap_or_default();
        for object in self.items.by_ref() {
            if !std::mem::take(&mut self.first) {
                out.push(b',');
            }
            match self.form {
                // Items of lists of built-in kinds do not say what they are, those of custom resources do.
                Form::Plain => object.write_json(&mut out, self.resource.is_copy),
                Form::Partial(version) => object.write_partial(&mut out, version),
                Form::Table(format) => {
                    let value = object.value().unwrap_or(Value::Null);
                    write_value(&mut out, &table::row(self.resource, format, &value));
                }
            }
            if out.len() >= CHUNK {
                break;
            }
        }
        if self.items.as_slice().is_empty() {
            out.extend_from_slice(b"]}\n");
        }
        Some(out.into())
    }
}

impl Iterator for List {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        self.chunk()
    }
}
