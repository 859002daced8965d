//! Get and list.

use apiserver_api::{ClusterName, Reason, Status};
use apiserver_machinery::{Resource, continue_token::ContinueToken, options::ListOptions, selector::Selector};
use apiserver_storage::{KeyValue, Range, RangeResult, StoreError, labels::Wanted};

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

/// Keys read at once when a selector filters a page.
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

    fn object(&self, kv: KeyValue) -> Object {
        Object::new(self.resource, self.span.place_at, kv)
    }

    /// The first key that begins with the wanted key is the wanted key or it is not there.
    async fn by_name(&self, name: &str, options: &ListOptions) -> Result<Page, Status> {
        let wanted = format!("{}{name}", self.span.prefix);
        let found = self.range(&wanted, 1).await?;
        let mut items = Vec::new();
        for kv in found.items.into_iter().filter(|kv| *kv.key == *wanted) {
            let object = self.object(kv);
            if object.matches(&options.selector)? {
                items.push(object);
            }
        }
        Ok(Page { items, revision: found.revision, continue_token: None, remaining: None })
    }

    async fn plain(&self, limit: usize) -> Result<Page, Status> {
        let found = self.range(&self.span.prefix, limit).await?;
        let items: Vec<Object> = found.items.into_iter().map(|kv| self.object(kv)).collect();
        let more = found.remaining > 0;
        let continue_token = if more { self.token_behind(found.revision, &items) } else { None };
        Ok(Page { items, revision: found.revision, continue_token, remaining: more.then_some(found.remaining) })
    }

    /// Reads one match more than asked for, so that a token is only given when there is a next item.
    async fn filtered(&mut self, options: &ListOptions) -> Result<Page, Status> {
        let limit = options.limit.unwrap_or(0);
        let mut items = Vec::new();
        loop {
            let chunk = if limit == 0 { 0 } else { SCAN };
            let found = self.range(&self.span.prefix, chunk).await?;
            self.start.revision = Some(found.revision);
            self.start.after = found.items.last().map(|kv| kv.key.to_string());
            for kv in found.items {
                let object = self.object(kv);
                let is_here = !self.span.scattered || self.of.holds(&object);
                if is_here && object.matches(&options.selector)? {
                    items.push(object);
                }
                if limit > 0 && items.len() > limit {
                    items.truncate(limit);
                    let continue_token = self.token_behind(found.revision, &items);
                    return Ok(Page { items, revision: found.revision, continue_token, remaining: None });
                }
            }
            if found.remaining == 0 {
                return Ok(Page { items, revision: found.revision, continue_token: None, remaining: None });
            }
        }
    }

    /// Reads all that is stored behind the start at once: of such a resource one cluster has few objects.
    async fn with_mandatory(&self, mandatory: Vec<Object>, options: &ListOptions) -> Result<Page, Status> {
        let found = self.range(&self.span.prefix, 0).await?;
        let mut all: Vec<Object> = found.items.into_iter().map(|kv| self.object(kv)).collect();
        let behind = |object: &Object| self.start.after.as_deref().is_none_or(|after| **object.storage_key() > *after);
        for object in mandatory.into_iter().filter(|object| behind(object) && object.revision() <= found.revision) {
            if let Err(at) = all.binary_search_by(|other| other.storage_key().cmp(object.storage_key())) {
                all.insert(at, object);
            }
        }
        let mut items = Vec::new();
        for object in all {
            if object.matches(&options.selector)? {
                items.push(object);
            }
        }
        let limit = options.limit.filter(|limit| (1..items.len()).contains(limit));
        let remaining = limit.map(|limit| (items.len() - limit) as u64).filter(|_| options.selector.is_empty());
        items.truncate(limit.unwrap_or(usize::MAX));
        let continue_token = limit.and_then(|_| self.token_behind(found.revision, &items));
        Ok(Page { items, revision: found.revision, continue_token, remaining })
    }

    fn token_behind(&self, revision: u64, items: &[Object]) -> Option<String> {
        let last = items.last()?.storage_key().strip_prefix(&self.span.prefix)?;
        Some(self.token(Some(revision), last))
    }

    fn token(&self, revision: Option<u64>, after: &str) -> String {
        ContinueToken { revision, after: after.to_owned() }.encode(self.resource, &self.place, &self.of.namespace)
    }
}
