//! Get and list.

use std::sync::Arc;

use apiserver_api::{ClusterName, Reason, Status};
use apiserver_machinery::{Resource, continue_token::ContinueToken, options::ListOptions, selector::Selector};
use apiserver_storage::{Packed, Range, RangeResult, StoreError, labels::Wanted};

use super::{Collection, Object, ObjectKey, Registry, keys::Span, store_status};
use crate::errors;

/// A list, or one page of it.
#[derive(Clone, Debug)]
pub struct Page {
    /// In key order: cluster, namespace, name.
    pub items: Vec<Object>,
    /// The revision at which the list is true.
    pub revision: u64,
    /// Present when there is more.
    pub continue_token: Option<String>,
    /// Objects behind this page, exactly; only without selectors and only when there are any.
    pub remaining: Option<u64>,
}

/// A list, or one page of it, as the store keeps it: its objects are unpacked one by one, so that whoever takes them slowly
/// holds little more than the store does anyway.
pub(crate) struct Listing {
    resource: &'static Resource,
    place_at: usize,
    items: Vec<Item>,
    pub(crate) revision: u64,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining: Option<u64>,
}

enum Item {
    Packed(Packed),
    /// Not in the store, or no longer in this form.
    Made(Box<Object>),
}

/// The objects of a [`Listing`], in order.
#[derive(Clone)]
pub(crate) struct Objects {
    listing: Arc<Listing>,
    at: usize,
}

impl Item {
    fn key(&self) -> &str {
        match self {
            Self::Packed(packed) => packed.key(),
            Self::Made(object) => object.storage_key(),
        }
    }
}

impl Listing {
    /// What was listed and has become something else.
    pub(crate) fn of(resource: &'static Resource, page: Page) -> Self {
        let Page { items, revision, continue_token, remaining } = page;
        let items = items.into_iter().map(|object| Item::Made(object.into())).collect();
        Self { resource, place_at: 0, items, revision, continue_token, remaining }
    }

    pub(crate) fn into_objects(self) -> Objects {
        Objects { listing: self.into(), at: 0 }
    }

    fn object(&self, item: &Item) -> Object {
        match item {
            Item::Packed(packed) => Object::new(self.resource, self.place_at, packed.unpack()),
            Item::Made(object) => Object::clone(object),
        }
    }

    fn into_page(self) -> Page {
        let items = self.items.iter().map(|item| self.object(item)).collect();
        let Self { revision, continue_token, remaining, .. } = self;
        Page { items, revision, continue_token, remaining }
    }
}

impl Objects {
    /// Whether none is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.listing.items.len()
    }
}

impl Iterator for Objects {
    type Item = Object;

    fn next(&mut self) -> Option<Object> {
        let item = self.listing.items.get(self.at)?;
        self.at += 1;
        Some(self.listing.object(item))
    }
}

/// Keys read at once when a selector filters a page, and objects that are looked at before others have their turn.
const SCAN: usize = 1000;

impl Registry {
    /// One object as it is now.
    ///
    /// # Errors
    /// 404, and those of the store.
    pub async fn get(&self, resource: &'static Resource, key: &ObjectKey) -> Result<Object, Status> {
        self.find(resource, key).await?.ok_or_else(|| errors::not_found(resource, &key.name))
    }

    /// One object as it is now, if it is there.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn find(&self, resource: &'static Resource, key: &ObjectKey) -> Result<Option<Object>, Status> {
        match self.find_stored(resource, key).await? {
            Some(object) => Ok(Some(object)),
            None => self.find_mandatory(resource, key).await,
        }
    }

    /// One object as it is stored now, if it is.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn find_stored(
        &self,
        resource: &'static Resource,
        key: &ObjectKey,
    ) -> Result<Option<Object>, Status> {
        let (path, prefix) = match self.storage_key(resource, key) {
            Ok(place) => place,
            Err(status) if status.reason == Some(Reason::NotFound) => return Ok(None),
            Err(status) => return Err(status),
        };
        let found = self.store.get(&path).await.map_err(store_status)?;
        Ok(found.map(|kv| Object::new(resource, prefix, kv)))
    }

    /// The objects of a collection at one revision. Selected by name it costs one read of one key; without
    /// selectors it is one range read, with them it reads on until the page is full. One cluster under all shards
    /// costs a read of what all shards hold of the resource.
    ///
    /// # Errors
    /// 400 for a bad token, 410 for a forgotten revision, 504 for a future one, and those of the store.
    pub async fn list(
        &self,
        resource: &'static Resource,
        of: &Collection,
        options: &ListOptions,
    ) -> Result<Page, Status> {
        Ok(self.listing(resource, of, options).await?.into_page())
    }

    /// The same, not unpacked.
    ///
    /// # Errors
    /// As above.
    pub(crate) async fn listing(
        &self,
        resource: &'static Resource,
        of: &Collection,
        options: &ListOptions,
    ) -> Result<Listing, Status> {
        let span = self.span(resource, of)?;
        let cluster = of.cluster.as_ref().map_or("*", ClusterName::as_str);
        let place =
            if resource.is_copy { format!("{}/{cluster}", self.shard().unwrap_or("*")) } else { cluster.to_owned() };
        let start = Start::of(options, resource, (&place, &of.namespace), &span.prefix, self.store.revision())?;
        let mandatory = self.mandatory(resource, of).await?;
        let wanted = wanted(&options.selector, &mandatory);
        let mut scan = Scan { registry: self, resource, of, place, span, start, wanted };
        if !mandatory.is_empty() {
            return scan.with_mandatory(mandatory, options).await;
        }
        if let Some(name) = of.single_name(resource, &options.selector, scan.span.scattered) {
            return scan.by_name(name, options).await;
        }
        if options.selector.is_empty() && !scan.span.scattered {
            scan.plain(options.limit.unwrap_or(0)).await
        } else {
            scan.filtered(options).await
        }
    }
}

/// What the store is told of a selector: nothing where it matters that something is stored, whatever its labels.
pub(super) fn wanted(selector: &Selector, mandatory: &[Object]) -> Wanted {
    let and = |wanted: Wanted, (key, values): (&str, &[String])| wanted.and(key, values.iter().map(String::as_str));
    if mandatory.is_empty() { selector.labels.wanted().fold(Wanted::default(), and) } else { Wanted::default() }
}

/// Where a list begins and as of when.
struct Start {
    after: Option<String>,
    revision: Option<u64>,
    /// A forgotten revision is refused with a token to go on with.
    continued: bool,
}

impl Start {
    /// What the options ask for (the table of api-server.md 3.2).
    fn of(
        options: &ListOptions,
        resource: &Resource,
        place: (&str, &str),
        prefix: &str,
        current: u64,
    ) -> Result<Self, Status> {
        if !options.continue_token.is_empty() {
            let token = ContinueToken::decode(&options.continue_token, resource, place.0, place.1)?;
            return Ok(Self {
                after: Some(format!("{prefix}{}", token.after)),
                revision: token.revision,
                continued: true,
            });
        }
        let wanted = options.resource_version.filter(|version| *version > 0);
        match options.not_older_than() {
            Some(wanted) if wanted > current => Err(errors::future_revision(wanted, current)),
            Some(_) => Ok(Self { after: None, revision: None, continued: false }),
            None => Ok(Self { after: None, revision: wanted, continued: false }),
        }
    }
}

/// One list being read.
struct Scan<'a> {
    registry: &'a Registry,
    resource: &'static Resource,
    of: &'a Collection,
    /// Cluster, or shard and cluster: what a continue token is bound to.
    place: String,
    span: Span,
    start: Start,
    /// What the store may leave out is not selected.
    wanted: Wanted,
}

impl Scan<'_> {
    async fn range(&self, prefix: &str, limit: usize) -> Result<RangeResult, Status> {
        let (after, revision) = (self.start.after.clone(), self.start.revision);
        let range = Range { prefix: prefix.to_owned(), after, limit, revision, wanted: self.wanted.clone() };
        self.registry.store.range(range).await.map_err(|error| match error {
            StoreError::Compacted { .. } if self.start.continued => {
                let start =
                    self.start.after.as_deref().and_then(|a| a.strip_prefix(&self.span.prefix)).unwrap_or_default();
                errors::expired_continue(self.token(None, start))
            }
            StoreError::Compacted { .. } => errors::expired_list(),
            // An exact read is no read that a little patience helps (api-server.md 3.2).
            StoreError::Future { requested, current } => {
                let mut status = errors::future_revision(requested, current);
                if let Some(details) = &mut status.details {
                    details.retry_after_seconds = None;
                }
                status
            }
            other => store_status(other),
        })
    }

    fn object(&self, packed: &Packed) -> Object {
        Object::new(self.resource, self.span.place_at, packed.unpack())
    }

    /// All there is.
    fn listing(&self, items: Vec<Item>, revision: u64) -> Listing {
        let (resource, place_at) = (self.resource, self.span.place_at);
        Listing { resource, place_at, items, revision, continue_token: None, remaining: None }
    }

    /// A page behind which there is more.
    fn page(&self, items: Vec<Item>, revision: u64, remaining: Option<u64>) -> Listing {
        let last = items.last().and_then(|last| last.key().strip_prefix(&self.span.prefix));
        let continue_token = last.map(|last| self.token(Some(revision), last));
        Listing { continue_token, remaining, ..self.listing(items, revision) }
    }

    /// The first key that begins with the wanted key is the wanted key or it is not there.
    async fn by_name(&self, name: &str, options: &ListOptions) -> Result<Listing, Status> {
        let wanted = format!("{}{name}", self.span.prefix);
        let found = self.range(&wanted, 1).await?;
        let mut items = Vec::new();
        for packed in found.items.into_iter().filter(|packed| packed.key() == wanted) {
            if self.object(&packed).matches(&options.selector)? {
                items.push(Item::Packed(packed));
            }
        }
        Ok(self.listing(items, found.revision))
    }

    async fn plain(&self, limit: usize) -> Result<Listing, Status> {
        let found = self.range(&self.span.prefix, limit).await?;
        let items = found.items.into_iter().map(Item::Packed).collect();
        Ok(match found.remaining {
            0 => self.listing(items, found.revision),
            remaining => self.page(items, found.revision, Some(remaining)),
        })
    }

    /// Reads one match more than asked for, so that a token is only given when there is a next item.
    async fn filtered(&mut self, options: &ListOptions) -> Result<Listing, Status> {
        let limit = options.limit.unwrap_or(0);
        let mut items = Vec::new();
        loop {
            let chunk = if limit == 0 { 0 } else { SCAN };
            let found = self.range(&self.span.prefix, chunk).await?;
            self.start.revision = Some(found.revision);
            self.start.after = found.items.last().map(|packed| packed.key().to_owned());
            for (looked, packed) in found.items.into_iter().enumerate() {
                if looked % SCAN == SCAN - 1 {
                    tokio::task::yield_now().await;
                }
                let object = self.object(&packed);
                let is_here = !self.span.scattered || self.of.holds(&object);
                if is_here && object.matches(&options.selector)? {
                    items.push(Item::Packed(packed));
                }
                if limit > 0 && items.len() > limit {
                    items.truncate(limit);
                    return Ok(self.page(items, found.revision, None));
                }
            }
            if found.remaining == 0 {
                return Ok(self.listing(items, found.revision));
            }
        }
    }

    /// Reads all that is stored behind the start at once: of such a resource one cluster has few objects.
    async fn with_mandatory(&self, mandatory: Vec<Object>, options: &ListOptions) -> Result<Listing, Status> {
        let found = self.range(&self.span.prefix, 0).await?;
        let mut all: Vec<Item> = found.items.into_iter().map(Item::Packed).collect();
        let behind = |object: &Object| self.start.after.as_deref().is_none_or(|after| **object.storage_key() > *after);
        for object in mandatory.into_iter().filter(|object| behind(object) && object.revision() <= found.revision) {
            if let Err(at) = all.binary_search_by(|other| other.key().cmp(object.storage_key())) {
                all.insert(at, Item::Made(object.into()));
            }
        }
        let mut items = Vec::new();
        for item in all {
            let matches = match &item {
                Item::Packed(packed) => self.object(packed).matches(&options.selector)?,
                Item::Made(object) => object.matches(&options.selector)?,
            };
            if matches {
                items.push(item);
            }
        }
        let Some(limit) = options.limit.filter(|limit| (1..items.len()).contains(limit)) else {
            return Ok(self.listing(items, found.revision));
        };
        let remaining = Some((items.len() - limit) as u64).filter(|_| options.selector.is_empty());
        items.truncate(limit);
        Ok(self.page(items, found.revision, remaining))
    }

    fn token(&self, revision: Option<u64>, after: &str) -> String {
        ContinueToken { revision, after: after.to_owned() }.encode(self.resource, &self.place, &self.of.namespace)
    }
}
